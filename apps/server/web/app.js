// The page: a form, the selected clip, the queue and the history. Everything that matters is kept by the server; the
// draft of the form is kept in this browser.
import {api, ApiError, blob, key} from './api.js';
import {Frames} from './frames.js';
import {Lint, SKELETON} from './lint.js';
import {References} from './references.js';
import {about, Result, time} from './result.js';

const $ = (id) => document.getElementById(id);
const DRAFT = 'h3-draft', THEME = 'h3-theme';
const FIELDS = ['prompt', 'size', 'num_frames', 'preset', 'num_inference_steps', 'seed', 'fit'];
let model = null, jobs = [];
const frames = new Frames($('form'), () => changed());
const refs = new References($('form'), {changed: () => changed(), renumbered: () => hint(), insert});
const lint = new Lint($('lint'), $('counts'), () => ({prompt: $('prompt').value, size: $('size').value,
  num_frames: Number($('num_frames').value), keyframes: frames.count, ...refs.counts}));
const result = new Result({again, changed: refresh, failed: showError});

// ---- form -------------------------------------------------------------------------------------------------------------
function option(select, value, text) {
  const item = document.createElement('option');
  item.value = value;
  item.textContent = text;
  select.append(item);
}

function fillChoices() {
  const seen = new Set();
  const add = (width, height, text) => {
    const size = `${width}x${height}`;
    if (seen.has(size)) return;
    seen.add(size);
    option($('size'), size, `${size}${text}`);
  };
  add(model.defaults.width, model.defaults.height, ' (default)');
  for (const canvas of model.canvases) add(canvas.width, canvas.height, ` (${canvas.aspect_ratio})`);
  for (const length of model.lengths) {
    option($('num_frames'), length.num_frames, `${length.seconds.toFixed(2)} s (${length.num_frames} frames)`);
  }
  for (const preset of model.presets) option($('preset'), preset, preset);
  for (const turbo of model.turbos) option($('preset'), `turbo:${turbo}`, `turbo ${turbo}`);
  $('num_frames').value = model.defaults.num_frames;
  $('num_inference_steps').value = model.defaults.num_inference_steps;
  $('seed').value = model.defaults.seed;
  $('rewrite-row').hidden = !model.rewriter;
  $('frames-row').hidden = !model.tasks.includes('fl2va');
  $('refs-row').hidden = !model.tasks.includes('ref2va');
}

function canvasSize() { return $('size').value.split('x').map(Number); }

function values() {
  const out = {prompt: $('prompt').value, size: $('size').value, num_frames: Number($('num_frames').value), audio: $('audio').checked};
  if ($('num_inference_steps').value) out.num_inference_steps = Number($('num_inference_steps').value);
  if ($('seed').value.trim()) out.seed = $('seed').value.trim();
  if ($('preset').value.startsWith('turbo:')) out.turbo = $('preset').value.slice(6);
  else if ($('preset').value) out.preset = $('preset').value;
  if ($('rewrite_prompt').checked) out.rewrite_prompt = true;
  if (frames.count > 0 && $('fit').value) out.fit = $('fit').value;
  if (refs.count > 0 && $('strict').checked) out.strict = true;
  return out;
}

function saveDraft() {
  const draft = {audio: $('audio').checked};
  for (const name of FIELDS) draft[name] = $(name).value;
  localStorage.setItem(DRAFT, JSON.stringify(draft));
}

function loadDraft() {
  try {
    const draft = JSON.parse(localStorage.getItem(DRAFT) || '{}');
    for (const name of FIELDS) if (draft[name]) setField(name, draft[name]);
    if ('audio' in draft) $('audio').checked = draft.audio;
  } catch { /* an older draft */ }
}

function setField(name, value) {
  const before = $(name).value;
  $(name).value = value;
  if ($(name).tagName === 'SELECT' && $(name).value !== String(value)) $(name).value = before;  // no such choice any more
}

// What is said of the prompt depends on the numbers of the references.
function hint() {
  lint.changed();
  refs.remind($('prompt').value);
}

// refused: the last submission, and nothing was changed since; asked: the number of the last question
let timer = 0, refused = false, asked = 0;
function changed() {
  if (!model) return;
  refused = false;
  ++asked;  // answers to earlier questions are about something else
  saveDraft();
  hint();
  frames.draw(...canvasSize(), $('fit').value);
  clearTimeout(timer);
  timer = setTimeout(estimate, 400);
}

// A picture of the canvas stands for the keyframe: what it shows costs nothing, and sending it for every estimate would.
function standIn() {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 32;
  return canvas.toDataURL('image/png');
}

function showEstimate(parts, notes) {
  $('estimate').textContent = parts.join(' \u00b7 ');
  $('estimate-notes').replaceChildren(...notes.map((note) => Object.assign(document.createElement('li'), {textContent: note})));
}

async function estimate() {
  const turn = ++asked;
  if (!$('prompt').value.trim() && refs.count === 0) {
    showEstimate([], []);
    if (!refused) clearError();  // of a prompt that is gone
    return;
  }
  const body = values();
  if (frames.files.first) body.input_reference = standIn();
  if (frames.files.last) body.last_frame_image = standIn();
  try {
    const plan = refs.count > 0 ? await refs.estimate(body) : await api.estimate(body);
    if (turn !== asked) return;  // a later question is the one that counts
    const parts = [`${about(plan)} · ${plan.num_inference_steps} evaluations`];
    parts.push(plan.work_seconds === null ? 'time unknown until the first clip was made'
      : `about ${time(plan.work_seconds)} of work${plan.basis.includes('other') ? ', scaled from other sizes' : ''}`);
    if (plan.peak_memory_mb) parts.push(`${plan.peak_memory_mb} MiB of memory${plan.fits ? '' : ', more than there is'}`);
    if (plan.jobs_ahead > 0) parts.push(plan.wait_seconds === null ? `${plan.jobs_ahead} ahead` : `${plan.jobs_ahead} ahead, ${time(plan.wait_seconds)}`);
    showEstimate(parts, plan.warnings.filter((warning) => !warning.startsWith('prompt:')));  // those stand above
    if (!refused) clearError();
  } catch (error) {
    if (turn !== asked) return;
    showEstimate([], []);
    showError(error);
  }
}

const PARAMS = {size: 'size', width: 'size', height: 'size', input_reference: 'first', last_frame_image: 'last', turbo: 'preset'};

// Fields are described by their hints, and while they are wrong by the error too.
function describe(field, wrong) {
  const hints = (field.getAttribute('aria-describedby') || '').split(' ').filter((id) => id && id !== 'error');
  if (wrong) hints.push('error');
  const set = (name, value) => value ? field.setAttribute(name, value) : field.removeAttribute(name);
  set('aria-invalid', wrong ? 'true' : '');
  set('aria-describedby', hints.join(' '));
}

function clearError() {
  $('error').hidden = true;
  refs.clear();
  for (const field of document.querySelectorAll('[aria-invalid]')) describe(field, false);
}

function showError(error) {
  if (error instanceof ApiError && error.status === 401) return askKey();
  clearError();
  if (refs.show(error)) return;
  $('error').textContent = error.message;
  $('error').hidden = false;
  const field = $(PARAMS[error.param] || error.param || '');
  if (field) describe(field, true);
}

async function submit(event) {
  event.preventDefault();
  if ($('submit').disabled) return;  // Ctrl+Enter asks the form, not the button
  const body = new FormData();
  for (const [name, value] of Object.entries(values())) body.append(name, value);
  if (frames.files.first) body.append('input_reference', frames.files.first);
  if (frames.files.last) body.append('last_frame_image', frames.files.last);
  refs.fill(body);
  $('submit').disabled = true;
  try {
    const job = await api.submit(body);
    clearError();
    select(job.id);
    await refresh();
  } catch (error) {
    refused = true;
    showError(error);
  }
  $('submit').disabled = false;
}

// At the cursor of the prompt, with blanks around it.
function insert(text) {
  const field = $('prompt'), {selectionStart: start, selectionEnd: end, value} = field;
  const before = start > 0 && !/\s/.test(value[start - 1]) ? ' ' : '', after = /^\s/.test(value.slice(end)) ? '' : ' ';
  field.setRangeText(before + text + after, start, end, 'end');
  field.focus();
  changed();
}

function reroll() {
  const parts = crypto.getRandomValues(new Uint32Array(2));
  $('seed').value = String(BigInt(parts[0]) << 20n | BigInt(parts[1] >>> 12));
  changed();
}

async function keyframe(job, name) {
  if (!job.inputs[name]) return null;
  const picture = await blob(job.inputs[name]);
  return new File([picture], name, {type: picture.type});
}

// All of it is fetched before anything is filled in, so that of two clicks the later one counts as a whole.
let filling = 0;
async function again(job, newSeed) {
  const turn = ++filling;
  const [first, last, items] = await Promise.all([keyframe(job, 'first_frame'), keyframe(job, 'last_frame'), References.of(job, blob)]);
  if (turn !== filling) return;
  setField('prompt', job.prompt);
  setField('size', job.size);
  setField('num_frames', job.num_frames);
  setField('preset', job.turbo ? `turbo:${job.turbo}` : job.request.preset || 'exact');
  setField('num_inference_steps', job.num_inference_steps);
  setField('fit', job.request.fit || '');
  $('seed').value = job.seed;
  $('audio').checked = job.request.audio !== false;
  const size = job.request.ref_image_size || '';
  setField('ref_image_size', size === 'diffusers' ? 'official' : size);
  $('strict').checked = job.request.strict === true;
  frames.set('first', first);
  frames.set('last', last);
  refs.set(items);
  if (newSeed) reroll();
  changed();
  $('prompt').focus();
}

// ---- lists ------------------------------------------------------------------------------------------------------------
function button(text, label, action) {
  const item = document.createElement('button');
  Object.assign(item, {type: 'button', className: 'quiet small', textContent: text});
  item.setAttribute('aria-label', label);
  item.addEventListener('click', async () => {
    try {
      await action();
      await refresh();
    } catch (error) {
      showError(error);
    }
  });
  return item;
}

function row(job, detail, buttons) {
  const item = document.createElement('li'), what = document.createElement('div'), tools = document.createElement('div');
  item.dataset.id = job.id;
  what.className = 'what';
  tools.className = 'row';
  what.append(Object.assign(document.createElement('b'), {textContent: job.prompt, title: job.prompt}));
  what.append(Object.assign(document.createElement('span'), {textContent: detail}));
  tools.append(...buttons);
  what.append(tools);
  if (job.url && !key.get()) {  // a player cannot send the key
    const still = document.createElement('video');
    Object.assign(still, {src: `${job.url}#t=0.1`, preload: 'metadata', muted: true, tabIndex: -1});
    still.setAttribute('aria-hidden', 'true');
    item.append(still);
  }
  item.append(what);
  return item;
}

// Rows that say what they said before stay as they are, so that nobody loses the focus or the place.
function show(list, rows) {
  const before = new Map([...list.children].map((item) => [item.dataset.id, item]));
  const items = rows.map(({job, detail, buttons}) => {
    const says = JSON.stringify([detail, job.prompt, job.status, buttons.map((b) => b.getAttribute('aria-label'))]);
    const old = before.get(job.id);
    if (old && old.dataset.says === says) return old;
    const item = row(job, detail, buttons);
    item.dataset.says = says;
    return item;
  });
  for (const item of items) item.setAttribute('aria-current', String(location.hash === `#${item.dataset.id}`));
  if (items.length === list.children.length && items.every((item, i) => item === list.children[i])) return;
  const focus = document.activeElement;
  const held = list.contains(focus) ? [focus.closest('li').dataset.id, focus.getAttribute('aria-label')] : null;
  list.replaceChildren(...items);
  if (!held) return;
  for (const item of list.querySelectorAll('button')) {
    if (item.closest('li').dataset.id === held[0] && item.getAttribute('aria-label') === held[1]) item.focus();
  }
}

function queueRow(job, waiting) {
  const place = job.queue_position;
  const moves = job.status !== 'queued' ? [] : [
    ...(place > 1 ? [button('Up', `Move up: ${job.prompt}`, () => api.move(job.id, place - 1))] : []),
    ...(place < waiting ? [button('Down', `Move down: ${job.prompt}`, () => api.move(job.id, place + 1))] : [])];
  const wait = job.wait_seconds === null ? '' : ` · starts in ${time(job.wait_seconds)}`;
  const detail = job.status === 'queued' ? `place ${place} · ${about(job)}${wait}` : `running · ${job.progress} % · ${about(job)}`;
  return {job, detail, buttons: [...moves, button('Show', `Show: ${job.prompt}`, () => select(job.id)),
    button('Cancel', `Cancel: ${job.prompt}`, () => api.cancel(job.id))]};
}

function historyRow(job) {
  return {job, detail: `${job.status} · ${about(job)} · seed ${job.seed}`, buttons: [
    button('Show', `Show: ${job.prompt}`, () => select(job.id)),
    button('Again', `Again with: ${job.prompt}`, () => again(job, false)),
    button('Delete', `Delete: ${job.prompt}`, async () => {
      await api.remove(job.id);
      if (location.hash === `#${job.id}`) location.hash = '';
    })]};
}

function draw() {
  const open = jobs.filter((job) => job.status === 'queued' || job.status === 'in_progress')
    .sort((a, b) => (a.queue_position || 0) - (b.queue_position || 0));
  const waiting = open.filter((job) => job.status === 'queued').length;
  const done = jobs.filter((job) => !open.includes(job));
  show($('queue'), open.map((job) => queueRow(job, waiting)));
  show($('history'), done.map(historyRow));
  $('queue-empty').hidden = open.length > 0;
  $('history-empty').hidden = done.length > 0;
}

async function refresh() {
  try {
    const ready = await api.ready();
    $('key-open').hidden = !ready.needs_key;
    $('state').dataset.ready = ready.ready ? 'yes' : 'no';
    $('state').textContent = ready.ready ? `${ready.model} on ${ready.device}` : `not ready: ${ready.problem}`;
    jobs = await api.list();
    draw();
  } catch (error) {
    if (error.status === 401) return askKey();
    $('state').dataset.ready = 'no';
    $('state').textContent = 'the server does not answer, trying again';
  }
}

// ---- the selected clip, in the address so that a reload keeps it -------------------------------------------------------
function select(id) {
  if (location.hash === `#${id}`) result.show(id);
  else location.hash = id;
}
function fromAddress() {
  const id = location.hash.slice(1);
  result.show(id.startsWith('video_') ? id : '');
  draw();
}

function askKey() {
  const dialog = $('key-dialog');
  if (dialog.open) return;
  $('key').value = '';
  dialog.showModal();
}

function toggleTheme() {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const now = document.documentElement.dataset.theme || (dark ? 'dark' : 'light');
  const next = now === 'dark' ? 'light' : 'dark';
  document.documentElement.dataset.theme = next;
  localStorage.setItem(THEME, next);
}

async function start() {
  if (localStorage.getItem(THEME)) document.documentElement.dataset.theme = localStorage.getItem(THEME);
  $('theme').addEventListener('click', toggleTheme);
  document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault();  // the address belongs to the selected clip
    $('prompt').focus();
  });
  $('key-open').addEventListener('click', askKey);
  $('key-dialog').addEventListener('close', () => {
    key.set($('key').value.trim());
    location.reload();
  });
  try {
    model = await api.model();
  } catch (error) {
    await refresh();
    if (error.status !== 401) setTimeout(() => location.reload(), 3000);
    return;
  }
  fillChoices();
  loadDraft();
  $('form').addEventListener('input', changed);
  $('preset').addEventListener('input', () => {  // presets and turbo adapters bring their own number
    $('num_inference_steps').value = $('preset').value === 'exact' ? model.defaults.num_inference_steps : '';
  });
  $('form').addEventListener('submit', submit);
  $('reroll').addEventListener('click', reroll);
  $('skeleton').addEventListener('click', () => {
    const text = $('prompt').value.trim();
    $('prompt').value = text ? SKELETON.replace('[Shot 1] ', `[Shot 1] ${text}`) : SKELETON;
    changed();
    $('prompt').focus();
  });
  $('prompt').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) $('form').requestSubmit();
  });
  addEventListener('hashchange', fromAddress);
  await refresh();
  fromAddress();
  changed();
  setInterval(refresh, 2000);
  document.body.dataset.ready = 'yes';
}

start();
