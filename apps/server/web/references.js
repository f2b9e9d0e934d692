// References: pictures, clips and sounds in the order in which the model reads them, each with the tag that names it in
// the prompt. What the server says about them is the truth; until it has answered, the page assumes that clips have
// sound.
import {api} from './api.js';
import {dropZone} from './frames.js';

const KINDS = {image: 'Picture', video: 'Video', audio: 'Audio'};
const make = (tag, fields = {}, ...children) => {
  const item = Object.assign(document.createElement(tag), fields);
  item.append(...children);
  return item;
};

// {tag, sound} of each reference, by the rule of the server: the sound of a clip takes its number right before the clip.
function number(items) {
  const count = {Picture: 0, Video: 0, Audio: 0};
  const next = (word) => `<${word} ${++count[word]}>`;
  return items.map((item) => {
    const sound = item.kind === 'audio' || (item.kind === 'video' && !item.silent && item.sound !== false) ? next('Audio') : '';
    return {tag: item.kind === 'audio' ? '' : next(KINDS[item.kind]), sound};
  });
}

// The table of a job, a line each: "<Picture 1> = a.png (64x48 -> 128x96)".
export function tableOf(job) {
  const table = job.resolved && job.resolved.references;
  return (table || []).map((line) => make('li', {textContent: line}));
}

export class References {
  constructor(root, hooks) {
    // changed(), insert(text); renumbered(): the server knows more about the clips, nothing else was changed
    this.hooks = hooks;
    this.items = [];
    this.version = 0;
    this.checked = null;  // {asked, plan, stop}: what the server was asked last, and the promise of its answer
    this.root = root;
    this.list = root.querySelector('#refs');
    this.error = root.querySelector('#refs-error');
    this.size = root.querySelector('#ref_image_size');
    for (const zone of root.querySelectorAll('.drop[data-kind]')) {
      dropZone(zone, (files) => this.add(files, zone.dataset.kind));
    }
  }

  get count() { return this.items.length; }
  get counts() {
    const tags = number(this.items), of = (kind) => this.items.filter((item) => item.kind === kind).length;
    return {pictures: of('image'), videos: of('video'), audios: tags.filter(({sound}) => sound).length};
  }

  // Files go where their type belongs, whichever zone they were dropped on.
  add(files, kind) {
    for (const file of files) {
      const type = file.type.split('/')[0];
      this.items.push({file, kind: type in KINDS ? type : kind, silent: false, sound: undefined, url: URL.createObjectURL(file)});
    }
    this.update();
  }

  set(items) {
    for (const item of this.items) URL.revokeObjectURL(item.url);
    this.items = items.map((item) => ({...item, url: URL.createObjectURL(item.file)}));
    this.update();
  }

  // Those of a finished job, from its inputs, for set().
  static async of(job, blob) {
    const items = [];
    for (const [i, reference] of job.references.entries()) {
      const name = `reference_${i + 1}`, bytes = await blob(job.inputs[name]);
      const item = {kind: reference.type, file: new File([bytes], reference.name, {type: bytes.type}), silent: reference.silent};
      const sound = job.inputs[`${name}_sound`];
      if (sound) item.otherSound = new File([await blob(sound)], reference.sound_name);
      items.push(item);
    }
    return items;
  }

  update() {
    ++this.version;
    this.drop();
    this.draw();
    this.hooks.changed();
  }

  move(index, by) {
    const [item] = this.items.splice(index, 1);
    this.items.splice(index + by, 0, item);
    this.update();
    const row = this.list.children[index + by], same = row.querySelector(by < 0 ? '.up' : '.down');
    (same.disabled ? row.querySelector(by < 0 ? '.down' : '.up') : same).focus();
  }

  remove(index) {
    URL.revokeObjectURL(this.items[index].url);
    this.items.splice(index, 1);
    this.update();
    const row = this.list.children[Math.min(index, this.count - 1)];
    (row ? row.querySelector('.remove') : this.root.querySelector('.drop[data-kind] input')).focus();
  }

  draw() {
    const tags = number(this.items);
    this.list.replaceChildren(...this.items.map((item, index) => this.row(item, index, tags[index])));
    this.root.querySelector('#refs-options').hidden = this.count === 0;
  }

  row(item, index, {tag, sound}) {
    const name = item.file.name;
    const button = (text, label, className, action) => {
      const out = make('button', {type: 'button', className: `quiet small ${className}`, textContent: text});
      out.setAttribute('aria-label', label);
      out.addEventListener('click', action);
      return out;
    };
    const insert = (text) => button(text, `Insert ${text}`, 'tag', () => this.hooks.insert(text));
    const up = button('Up', `Up: ${name}`, 'up', () => this.move(index, -1));
    const down = button('Down', `Down: ${name}`, 'down', () => this.move(index, 1));
    up.disabled = index === 0;
    down.disabled = index === this.count - 1;
    const tools = make('div', {className: 'row'}, ...[sound, tag].filter(Boolean).map(insert), up, down,
      button('Remove', `Remove: ${name}`, 'remove', () => this.remove(index)));
    const what = make('div', {className: 'what'}, make('b', {textContent: name, title: name}),
      make('span', {className: 'is', textContent: item.is || ''}), tools);
    if (item.kind === 'video' && item.sound !== false) what.append(this.soundChoice(item));
    return make('li', {}, this.still(item), what);
  }

  soundChoice(item) {
    const box = make('input', {type: 'checkbox', checked: !item.silent});
    box.addEventListener('change', () => {
      item.silent = !box.checked;
      const index = this.items.indexOf(item);
      this.update();
      this.list.children[index].querySelector('input').focus();
    });
    return make('label', {className: 'check'}, box, ` Use the sound of ${item.otherSound ? item.otherSound.name : item.file.name}`);
  }

  still(item) {
    if (item.kind === 'image') return make('img', {src: item.url, alt: ''});
    if (item.kind === 'audio') return make('span', {className: 'note', textContent: '\u266a', ariaHidden: 'true'});
    const clip = make('video', {src: `${item.url}#t=0.1`, preload: 'metadata', muted: true, tabIndex: -1});
    clip.setAttribute('aria-hidden', 'true');
    return clip;
  }

  // Adds the references to a form in the words of the API.
  fill(body) {
    const conditions = this.items.map((item, i) => {
      const type = item.kind === 'video' && !item.silent ? 'video_audio' : item.kind;
      const condition = {type, role: 'reference', uri: `attachment:file${i}`, name: item.file.name};
      body.append(`file${i}`, item.file, item.file.name);
      if (item.otherSound && !item.silent) {
        condition.sound = `attachment:sound${i}`;
        body.append(`sound${i}`, item.otherSound, item.otherSound.name);
      }
      return condition;
    });
    if (conditions.length > 0) body.append('conditions', JSON.stringify(conditions));
    if (conditions.length > 0 && this.size.value) body.append('ref_image_size', this.size.value);
    return body;
  }

  // The last question, with its files, if they are still on their way.
  drop() {
    if (this.checked) this.checked.stop.abort();
    this.checked = null;
  }

  // What the server says about the request. Files are sent once for as long as they, and what they are fitted to, stay
  // as they are, however often it is asked and however long it takes.
  estimate(values) {
    const {prompt, seed, strict, ...rest} = values;
    const asked = JSON.stringify([this.version, this.size.value, rest]);
    if (!this.checked || this.checked.asked !== asked) {
      this.drop();
      const stop = new AbortController();
      const checked = this.checked = {asked, stop, plan: this.ask({...rest, seed}, prompt, stop.signal)};
      checked.plan.catch((error) => {
        // Refused for what it was asked with, it would be again; anything else may be different the next time.
        const stays = [400, 413].includes(error.status) && !['prompt', 'seed'].includes(error.param);
        if (!stays && this.checked === checked) this.checked = null;
      });
    }
    return this.checked.plan;
  }

  async ask(values, prompt, signal) {
    const version = this.version, body = new FormData();
    for (const [name, value] of Object.entries({...values, prompt: prompt.trim() ? prompt : '-'})) {
      if (value !== undefined) body.append(name, value);
    }
    const plan = await api.estimate(this.fill(body), signal);
    if (version === this.version) this.learn(plan.references);
    return plan;
  }

  // Rows are made anew only when tags change: nobody should lose the button under the pointer.
  learn(references) {
    let renumber = false;
    for (const [i, reference] of references.entries()) {
      const item = this.items[i], is = [reference.is, reference.sound_is].filter(Boolean).join('; ');
      const sound = item.silent ? item.sound : reference.sound_tag !== null;
      renumber = renumber || (item.kind === 'video' && (item.sound !== false) !== (sound !== false));
      Object.assign(item, {is, sound});
      this.list.children[i].querySelector('.is').textContent = is;
    }
    if (!renumber) return;
    const held = this.list.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
    this.draw();
    if (held) [...this.list.querySelectorAll('button')].find((b) => b.getAttribute('aria-label') === held)?.focus();
    this.hooks.renumbered();
  }

  // References that no tag of the prompt names; the server's hints say which tags name nothing.
  remind(prompt) {
    const tags = number(this.items), notes = [];
    this.items.forEach((item, i) => {
      const tag = tags[i].tag || tags[i].sound;
      if (prompt.trim() && !prompt.includes(tag)) notes.push(`Say what ${tag} (${item.file.name}) is for.`);
    });
    this.root.querySelector('#refs-notes').replaceChildren(...notes.map((textContent) => make('li', {textContent})));
  }

  // Whether an error is about references; it is then shown beside them.
  show(error) {
    const found = /^(conditions|references)(\[(\d+)\])?/.exec(error.param || '');
    if (!found || this.count === 0) return false;
    const row = this.list.children[Number(found[3])], name = row ? this.items[Number(found[3])].file.name : 'References';
    if (row) row.classList.add('bad');
    const text = error.message.startsWith(`${error.param}: `) ? error.message.slice(error.param.length + 2) : error.message;
    this.error.textContent = text.includes(name) ? text : `${name}: ${text}`;
    this.error.hidden = false;
    return true;
  }

  clear() {
    this.error.hidden = true;
    this.error.textContent = '';  // hidden text is still read where a field is described by it
    for (const row of this.list.children) row.classList.remove('bad');
  }
}
