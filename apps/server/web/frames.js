// The two keyframes: choosing, dropping, and showing what the model will see of them.
const EMPTY = 'Drop a picture here or choose one.';

export class Frames {
  constructor(root, changed) {
    this.files = {first: null, last: null};
    this.images = {first: null, last: null};
    this.changed = changed;
    this.zones = {};
    for (const zone of root.querySelectorAll('.drop[data-slot]')) {
      this.wire(zone, zone.dataset.slot);
      zone.querySelector('.hint').textContent = EMPTY;
    }
  }

  wire(zone, slot) {
    this.zones[slot] = zone;
    const input = zone.querySelector('input');
    input.addEventListener('change', () => this.set(slot, input.files[0] || null));
    zone.querySelector('.remove').addEventListener('click', () => this.set(slot, null));
    zone.addEventListener('dragover', (event) => {
      event.preventDefault();
      zone.classList.add('over');
    });
    zone.addEventListener('dragleave', () => zone.classList.remove('over'));
    zone.addEventListener('drop', (event) => {
      event.preventDefault();
      zone.classList.remove('over');
      if (event.dataTransfer.files[0]) this.set(slot, event.dataTransfer.files[0]);
    });
  }

  get count() { return Number(!!this.files.first) + Number(!!this.files.last); }

  async set(slot, file) {
    this.files[slot] = file;
    this.images[slot] = null;
    const zone = this.zones[slot], hint = zone.querySelector('.hint');
    if (!file) zone.querySelector('input').value = '';
    hint.textContent = EMPTY;
    if (file) {
      try {
        this.images[slot] = await createImageBitmap(file);
        hint.textContent = `${file.name}, ${this.images[slot].width}x${this.images[slot].height}`;
      } catch {
        hint.textContent = `${file.name} cannot be shown here; the server will say whether it can read it.`;
      }
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
