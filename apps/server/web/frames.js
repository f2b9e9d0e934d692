// The two keyframes: choosing, dropping, and showing what the model will see of them.
const EMPTY = 'Drop a picture here or choose one.';

// take(files) gets what is chosen in a zone or dropped on it.
export function dropZone(zone, take) {
  const input = zone.querySelector('input');
  input.addEventListener('change', () => {
    const files = [...input.files];
    input.value = '';  // so that the same file can be chosen again
    if (files.length > 0) take(files);
  });
  zone.addEventListener('dragover', (event) => {
    event.preventDefault();
    zone.classList.add('over');
  });
  zone.addEventListener('dragleave', () => zone.classList.remove('over'));
  zone.addEventListener('drop', (event) => {
    event.preventDefault();
    zone.classList.remove('over');
    if (event.dataTransfer.files.length > 0) take([...event.dataTransfer.files]);
  });
}

export class Frames {
  constructor(root, changed) {
    this.files = {first: null, last: null};
    this.images = {first: null, last: null};
    this.changed = changed;
    this.zones = {};
    for (const zone of root.querySelectorAll('.drop[data-slot]')) {
      const slot = zone.dataset.slot;
      this.zones[slot] = zone;
      dropZone(zone, ([file]) => this.set(slot, file));
      zone.querySelector('.remove').addEventListener('click', () => this.set(slot, null));
      zone.querySelector('.hint').textContent = EMPTY;
    }
  }

  get count() { return Number(!!this.files.first) + Number(!!this.files.last); }

  async set(slot, file) {
    this.files[slot] = file;
    this.images[slot] = null;
    const zone = this.zones[slot], hint = zone.querySelector('.hint');
    hint.textContent = EMPTY;
    if (file) {
      const image = await createImageBitmap(file).catch(() => null);
      if (this.files[slot] !== file) return;  // another one was given meanwhile
      this.images[slot] = image;
      hint.textContent = image ? `${file.name}, ${image.width}x${image.height}`
        : `${file.name} cannot be shown here; the server will say whether it can read it.`;
    }
    zone.querySelector('.remove').hidden = !file;
    document.getElementById('fit-row').hidden = this.count === 0;
    this.changed();
  }

  // The rule of the model: the first picture of a request is stretched, a second one covers and is cropped.
  draw(width, height, fit) {
    for (const slot of ['first', 'last']) {
      const canvas = this.zones[slot].querySelector('canvas'), image = this.images[slot];
      canvas.hidden = !image;
      if (!image) continue;
      canvas.width = width;
      canvas.height = height;
      const how = fit || (slot === 'last' && this.files.first ? 'cover' : 'stretch');
      const context = canvas.getContext('2d');
      let w = width, h = height;
      if (how !== 'stretch') {
        const scales = [width / image.width, height / image.height];
        const scale = how === 'cover' ? Math.max(...scales) : Math.min(...scales);
        [w, h] = [image.width * scale, image.height * scale];
      }
      context.fillRect(0, 0, width, height);
      context.drawImage(image, (width - w) / 2, (height - h) / 2, w, h);
    }
  }
}
