// What the server says of a prompt while it is written: its tokens, the time its spoken words take, and hints.
import {api} from './api.js';

export const SKELETON = 'integrated_multimodal_description: [Shot 1] \noverall_soundscape: \nnon_diegetic_music: none';

const WAIT = 250;  // ms without a key

export class Lint {
  // scene(): what the prompt is for, as fields of POST /v1/lint.
  constructor(list, counts, scene) {
    Object.assign(this, {list, counts, scene, timer: 0, asked: 0});
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), WAIT);
  }

  async ask() {
    const turn = ++this.asked, scene = this.scene();
    if (!scene.prompt.trim()) return this.show({hints: [], tokens: null});
    try {
      const found = await api.lint(scene);
      if (turn === this.asked) this.show(found);
    } catch { /* the estimate of the same request says what is wrong */ }
  }

  show(found) {
    const parts = [];
    if (found.tokens !== null) parts.push(`${found.tokens} tokens of ${found.token_limit}`);
    if (found.speech_seconds > 0) parts.push(`about ${found.speech_seconds.toFixed(1)} s of speech in ${found.clip_seconds.toFixed(1)} s`);
    this.counts.textContent = parts.join(' \u00b7 ');
    this.list.replaceChildren(...found.hints.map((hint) => {
      const item = document.createElement('li');
      item.className = hint.level === 'advice' ? 'hint' : '';
      item.textContent = hint.message.replace(/^prompt: /, '');
      return item;
    }));
  }
}
