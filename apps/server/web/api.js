// Talking to the server this page came from.
const KEY = 'h3-key';

export const key = {
  get: () => localStorage.getItem(KEY) || '',
  set: (value) => value ? localStorage.setItem(KEY, value) : localStorage.removeItem(KEY),
};

export class ApiError extends Error {
  constructor(status, body) {
    const error = (body && body.error) || {};
    super(error.message || `the server answered ${status}`);
    Object.assign(this, {status, param: error.param || '', code: error.code || ''});
  }
}

export function call(path, options = {}) {
  const headers = new Headers(options.headers || {});
  if (key.get()) headers.set('Authorization', `Bearer ${key.get()}`);
  return fetch(path, {...options, headers, cache: 'no-store'});
}

async function json(path, options) {
  const response = await call(path, options);
  let body = null;
  try {
    body = await response.json();
  } catch { /* no JSON: the status says enough */ }
  if (!response.ok && !(path === '/ready' && response.status === 503)) throw new ApiError(response.status, body);
  return body;
}

const post = (path, body, signal) => json(path, body instanceof FormData ? {method: 'POST', body, signal}
  : {method: 'POST', body: JSON.stringify(body || {}), headers: {'Content-Type': 'application/json'}, signal});

export const api = {
  ready: () => json('/ready'),
  model: async () => (await json('/v1/models')).data[0],
  list: async () => (await json('/v1/videos?limit=200')).data,
  job: (id) => json(`/v1/videos/${id}`),
  submit: (body) => post('/v1/videos', body),
  lint: (body) => post('/v1/lint', body),
  estimate: (body, signal) => post('/v1/videos/estimate', body, signal),
  cancel: (id) => post(`/v1/videos/${id}/cancel`),
  move: (id, position) => post(`/v1/videos/${id}/move`, {position}),
  remove: (id) => json(`/v1/videos/${id}`, {method: 'DELETE'}),
};

export async function blob(path) {
  const response = await call(path);
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  return response.blob();
}

// Calls on(event, data) until the job ends. EventSource cannot send a key, so the stream is read by hand.
export async function follow(id, on, signal) {
  const response = await call(`/v1/videos/${id}/events`, {signal});
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const lines = text.slice(0, end).split('\n');
      text = text.slice(end + 2);
      const field = (name) => (lines.find((line) => line.startsWith(name + ': ')) || '').slice(name.length + 2);
      if (field('event')) on(field('event'), JSON.parse(field('data')));
    }
  }
}
