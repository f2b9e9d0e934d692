// What a prompt probably lacks. Hints only: every prompt that is not blank is accepted.
const KNOWN = ['integrated_multimodal_description:', 'overall_soundscape:', 'non_diegetic_music:'];

export const SKELETON = 'integrated_multimodal_description: [Shot 1] \noverall_soundscape: \nnon_diegetic_music: none';

export function lint(prompt, pictures) {
  const notes = [];
  const text = prompt.trim();
  if (!text) return notes;
  const opens = (text.match(/<d>/g) || []).length, closes = (text.match(/<\/d>/g) || []).length;
  if (opens !== closes) notes.push(`Spoken words go between <d> and </d>: ${opens} opened, ${closes} closed.`);
  if (/<\|(image|video)_pad\|>/.test(text)) notes.push('Remove <|image_pad|> and <|video_pad|>: they stand for pictures inside the model.');
  for (const tag of text.matchAll(/<Picture (\d+)>/g)) {
    if (Number(tag[1]) > pictures) notes.push(`${tag[0]} is named, but only ${pictures} keyframes are given.`);
  }
  const used = KNOWN.filter((name) => text.includes(name));
  if (used.length > 0 && used.length < KNOWN.length) {
    notes.push(`The structure is incomplete, add ${KNOWN.filter((name) => !used.includes(name)).join(' and ')}`);
  }
  if (used.length > 0 && !/\[Shot 1\]/.test(text)) notes.push('Start the description with [Shot 1].');
  if (text.length > 7000) notes.push(`${text.length} characters: the hosted model takes 7000.`);
  if (text.length < 20 && used.length === 0) notes.push('Short prompts leave much to chance: say who, what, where, light and sound.');
  if (!/\b(sound|music|voice|says?|hear|noise|silen|sing|beep|<d>)/i.test(text)) notes.push('Nothing is said about sound; the model makes some anyway.');
  return notes;
}
