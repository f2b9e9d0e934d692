// The selected clip: its progress while it is made, then the player and the report.
import {api, blob, call, follow, key} from './api.js';
import {tableOf} from './references.js';

const $ = (id) => document.getElementById(id);
export const time = (seconds) => seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
export const about = (job) => `${job.size} · ${Number(job.seconds).toFixed(2)} s`;

function table(caption, rows) {
  const out = document.createElement('table');
  out.append(Object.assign(document.createElement('caption'), {textContent: caption}));
  for (const cells of rows) {
    const line = document.createElement('tr');
    cells.forEach((cell, i) => {
      const item = document.createElement(i === 0 ? 'th' : 'td');
      if (i === 0) item.scope = 'row';
      item.textContent = cell;
      line.append(item);
    });
    out.append(line);
  }
  return out;
}

export class Result {
  constructor(hooks) {
    this.hooks = hooks;
    this.job = null;
    this.stop = null;
    $('cancel').addEventListener('click', async () => {
      $('cancel').disabled = true;
      try {
        await api.cancel(this.job.id);
      } catch (error) {
        hooks.failed(error);
      }
      $('cancel').disabled = false;
    });
    $('again').addEventListener('click', () => hooks.again(this.job, false).catch(hooks.failed));
    $('again-seed').addEventListener('click', () => hooks.again(this.job, true).catch(hooks.failed));
  }

  show(id) {
    if (this.stop) this.stop.abort();
    $('result').hidden = true;
    $('preview').hidden = true;
    $('welcome').hidden = !!id;
    if (!id) return;
    this.stop = new AbortController();
    this.watch(id, this.stop.signal);
  }

  async watch(id, signal) {
    while (!signal.aborted) {
      try {
        let over = false;
        await follow(id, (event, data) => {
          if (signal.aborted) return;
          if (event === 'progress') this.progress(data);
          else if (event === 'preview') this.preview(data);
          else if (event === 'deleted') this.show('');
          else this.update(data);
          over = over || ['completed', 'failed', 'cancelled', 'deleted'].includes(event);
        }, signal);
        if (over) return this.hooks.changed();
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404) return this.show('');
        if (error.status === 401) return this.hooks.failed(error);
        if (error.status === 503) {  // too many followers: look now and then instead
          try {
            this.update(await api.job(id));
          } catch { /* again below */ }
        }
      }
      await new Promise((done) => setTimeout(done, 1500));
    }
  }

  progress(data) {
    const waits = data.status === 'queued';
    $('bar').value = data.progress;
    const eta = data.eta_seconds === null ? '' : `, ${time(data.eta_seconds)} left`;
    const steps = data.stage === 'denoise' ? ` ${data.step} of ${data.steps}` : '';
    $('stage').textContent = waits
      ? `waiting, place ${data.queue_position}${data.wait_seconds === null ? '' : `, starts in ${time(data.wait_seconds)}`}`
      : `${data.stage || 'starting'}${steps}${eta}`;
  }

  preview(data) {
    $('preview').src = `data:${data.type};base64,${data.data}`;
    $('preview').hidden = false;
  }

  update(job) {
    this.job = job;
    const open = job.status === 'queued' || job.status === 'in_progress', done = job.status === 'completed';
    $('result').hidden = false;
    $('result').dataset.status = job.status;
    $('result-title').textContent = job.prompt;
    $('result-status').textContent = `${job.status.replace('_', ' ')} · ${about(job)} · seed ${job.seed}`;
    $('running').hidden = !open;
    $('player').hidden = $('download').hidden = !done;
    if (!open) $('preview').hidden = true;
    $('failure').hidden = job.status !== 'failed';
    if (job.error) $('failure').textContent = job.error.message;
    $('warnings').replaceChildren(...job.warnings.map((text) => Object.assign(document.createElement('li'), {textContent: text})));
    $('result-refs').replaceChildren(...tableOf(job));
    $('report').hidden = open;
    if (open) this.progress(job);
    if (done) this.play(job);
    if (!open) this.report(job);
  }

  async play(job) {
    $('download').href = `${job.url}?download=1`;
    $('download').download = job.file_name;
    let source = job.url;
    if (key.get()) {  // a player cannot send the key
      source = URL.createObjectURL(await blob(job.url));
      $('download').href = source;
    }
    if ($('player').getAttribute('src') !== source) $('player').src = source;
  }

  async report(job) {
    const parts = [];
    if (job.evaluations) {
      const e = job.evaluations;
      parts.push(table('Evaluations', [['run', e.run], ['reused', e.reused], ['forecast', e.forecast]]));
    }
    const times = Object.entries(job.stage_durations);
    if (times.length > 0) {
      parts.push(table('Times', [...times.map(([name, seconds]) => [name, `${seconds.toFixed(2)} s`]),
        ['total', `${job.inference_time_s.toFixed(2)} s`], ['peak memory', `${job.peak_memory_mb} MiB`]]));
    }
    parts.push(table('Request', Object.entries(job.resolved || {}).filter(([, v]) => v && v.value !== undefined)
      .map(([name, v]) => [name, v.value, v.from])));
    $('report-body').replaceChildren(...parts);
    if (job.status !== 'completed') return;
    const response = await call(`/v1/videos/${job.id}/report`);
    if (!response.ok || this.job.id !== job.id) return;
    const full = await response.json();
    $('report-body').append(table('Checks', (full.watchdog || []).map((f) => [f.check, f.ok ? 'good' : f.text || 'bad'])));
  }
}
