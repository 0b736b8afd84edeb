// Numbers and times as people read them.

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 10) return `${trimmed(seconds, 1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days}d ${hours}h`;
  if (hours) return `${hours}h ${two(minutes)}m`;
  return `${minutes}m ${two(whole % 60)}s`;
}

// At an axis there is little room: 0, 30s, 5m, 2h.
export function tick(seconds) {
  if (seconds === 0) return "0";
  if (seconds % 86400 === 0) return `${seconds / 86400}d`;
  if (seconds % 3600 === 0) return `${seconds / 3600}h`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)}h${two(Math.round(seconds / 60) % 60)}`;
  if (seconds % 60 === 0) return `${seconds / 60}m`;
  if (seconds > 60) return `${Math.floor(seconds / 60)}m${two(Math.round(seconds % 60))}`;
  return `${trimmed(seconds, 3)}s`;
}

const VIRTUAL = "on a virtual clock"; // a simulated run's begins at 0

export function ago(unixSeconds) {
  if (unixSeconds < 1e8) return VIRTUAL;
  const seconds = Date.now() / 1000 - unixSeconds;
  return seconds < 5 ? "just now" : `${duration(seconds)} ago`;
}

export function date(unixSeconds) {
  if (unixSeconds < 1e8) return VIRTUAL;
  return new Date(unixSeconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function count(number) {
  return number === null || number === undefined ? "-" : number.toLocaleString("en");
}

export function metric(value) {
  if (value === null || value === undefined) return "-";
  return Math.abs(value) >= 100 ? trimmed(value, 1) : value.toFixed(4);
}

export function percent(share) {
  return share === null || share === undefined ? "-" : `${Math.round(share * 100)}%`;
}

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (number >= 1000 && at < units.length - 1) { number /= 1000; at += 1; }
  return `${at && number < 100 ? number.toFixed(1) : Math.round(number)} ${units[at]}`;
}

export function rate(perSecond) {
  if (!perSecond) return "0 /s";
  if (perSecond >= 1) return `${trimmed(perSecond, 2)} /s`;
  return `${trimmed(perSecond * 60, perSecond * 60 < 10 ? 2 : 1)} /min`;
}

function trimmed(number, digits) {
  return String(Number(number.toFixed(digits)));
}

function two(number) {
  return String(number).padStart(2, "0");
}
