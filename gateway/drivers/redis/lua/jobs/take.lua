-- New jobs, as arguments: WIDTH of them each.
local WIDTH = 12

local function new_at(at)
  return {
    id = ARGV[at], h = tokens_of(ARGV[at + 1]), b = ARGV[at + 2], payload = ARGV[at + 3], fingerprint = ARGV[at + 4],
    dedupe = ARGV[at + 5], until_s = tonumber(ARGV[at + 6]), debounce = ARGV[at + 7], wait_s = tonumber(ARGV[at + 8]),
    most_s = tonumber(ARGV[at + 9]), n = ARGV[at + 10], deadline = ARGV[at + 11],
  }
end

local function dedupe_at(name)
  return BASE .. ':d:' .. name
end

local function debounce_at(name)
  return BASE .. ':w:' .. name
end

-- Until when attempts to have a job taken were sent that count no more: they may arrive late.
local function back_at(id)
  return BASE .. ':back:' .. id
end

-- Returns the id of the job that is there already, and whether it is one with another payload.
local function known(new)
  if new.dedupe ~= '' then
    local found = tokens_of(redis.call('GET', dedupe_at(new.dedupe)) or '')
    local there = found[1] and tonumber(found[3]) > now and load(found[1])
    if found[1] and tonumber(found[3]) > now and not (there and there.h[STATE] == 'cancelled') then
      return found[1], found[2] ~= '~' .. new.fingerprint
    end
  end
  if redis.call('EXISTS', BASE .. ':j:' .. new.id) == 1 then
    return new.id, false
  end
  local old, by = string.match(new.debounce ~= '' and redis.call('GET', debounce_at(new.debounce)) or '', '^(%S+) (%S+)$')
  if by == new.id and redis.call('EXISTS', BASE .. ':j:' .. old) == 1 then
    return old, false, true -- it has taken that one's place before
  end
end

-- Returns the scheduled job whose place the new one takes.
local function scheduled(new)
  local id = new.debounce ~= '' and string.match(redis.call('GET', debounce_at(new.debounce)) or '', '^%S+')
  local job = id and load(id)
  return job and job.h[STATE] == 'scheduled' and job or nil
end

local last_us
local function next_seq()
  last_us = math.max((last_us or tonumber(redis.call('GET', BASE .. ':seq') or '0')) + 1, real_us)
  redis.call('SET', BASE .. ':seq', string.format('%.0f', last_us))
  return string.format('%.0f', last_us) .. '-' .. PARTITION
end

local function score_of(seq)
  return string.match(seq, '^%d+')
end

local function index(job)
  local h, parent = job.h, parent_of(job)
  redis.call('XADD', BASE .. ':all', h[SEQ], 'j', job.id)
  redis.call('XADD', BASE .. ':t:' .. h[TENANT], h[SEQ], 'j', job.id)
  if parent ~= '' then -- it counts as open with its run
    redis.call('ZADD', BASE .. ':c:' .. parent, score_of(h[SEQ]), job.id)
    return
  end
  redis.call('HINCRBY', BASE .. ':open', h[TENANT], 1)
  redis.call('HINCRBY', BASE .. ':open', '*', 1)
end

-- The new job takes the place of one that is scheduled, and keeps its id.
local function replaced(old, new)
  local h, was = new.h, old.h
  for _, piece in pairs(old.pieces) do
    unplace(old, piece)
  end
  local reads = reads_of(old)
  if reads ~= '' then
    unuse(':reads', reads)
  end
  local run_at = math.min(now + new.wait_s, tonumber(was[CREATED]) + new.most_s)
  h[RUN_AT] = exact(run_at)
  for _, kept in ipairs({ C, CREATED, PAUSED, SEQ }) do
    h[kept] = was[kept]
  end
  h[REV] = string.format('%.0f', tonumber(was[REV]) + 1)
  h[DEBOUNCED] = string.format('%.0f', tonumber(was[DEBOUNCED]) + 1)
  if was[KIND] == 'batch' then
    redis.call('ZREM', BASE .. ':b:' .. was[TENANT], old.id)
  end
  return { id = old.id, at = old.at, h = h, pieces = {} }
end

-- Notes under which dedupe and debounce keys a job is known, each once: one that is debounced comes again and again.
local function note_names(job, names)
  local known_as = redis.call('HGET', job.at, 'k') or ''
  for _, name in ipairs(tokens_of(names)) do
    if not string.find(known_as .. ' ', ' ' .. name .. ' ', 1, true) then
      known_as = known_as .. ' ' .. name
    end
  end
  redis.call('HSET', job.at, 'k', known_as)
end

-- Takes a job, whatever the bounds. `is_again`: it may be there by an earlier attempt of the same sender. Returns its id, what
-- has become of it (new, known, conflict or replaced), and its text.
local function take(new, is_again)
  local id, is_other, is_replaced = known(new)
  if id then
    local there = load(id)
    if id ~= new.id or not is_again then
      redis.call('HSET', there.at, 'm', 1) -- somebody relies on it from now on: it is not taken back any more
    end
    return id, is_other and 'conflict' or is_replaced and 'replaced' or 'known', there.s
  end
  local old = scheduled(new)
  local job
  if old then
    job = replaced(old, new)
    redis.call('HSET', job.at, 'm', 1)
  else
    job = { id = new.id, at = BASE .. ':j:' .. new.id, h = new.h, pieces = {} }
    job.h[SEQ] = next_seq()
    index(job)
  end
  local h = job.h
  local run_at = tonumber(h[RUN_AT])
  if run_at > now and run_at <= tonumber(h[CREATED]) then -- at once, by a clock that is ahead of this one
    run_at = now
    h[RUN_AT] = exact(now)
  end
  h[STATE] = run_at > now and 'scheduled' or 'queued'
  if h[KIND] == 'batch' then
    redis.call('ZADD', BASE .. ':b:' .. h[TENANT], score_of(h[SEQ]), job.id)
  end
  if reads_of(job) ~= '' then
    use(':reads', reads_of(job))
  end
  if new.deadline ~= '' then
    redis.call('ZADD', BASE .. ':due', new.deadline, job.id)
  else
    redis.call('ZREM', BASE .. ':due', job.id)
  end
  job.b = new.b
  if new.payload ~= '' then
    redis.call('HSET', job.at, 'x', new.payload)
  elseif old then
    redis.call('HDEL', job.at, 'x')
  end
  local names = ''
  if new.dedupe ~= '' then
    local ms = math.max(1, math.ceil((new.until_s - now) * 1000))
    local value = job.id .. ' ~' .. new.fingerprint .. ' ' .. exact(new.until_s)
    redis.call('SET', dedupe_at(new.dedupe), value, 'PX', string.format('%.0f', ms))
    names = ' d' .. new.dedupe
  end
  if new.debounce ~= '' then
    redis.call('SET', debounce_at(new.debounce), job.id .. ' ' .. new.id)
    names = names .. ' w' .. new.debounce
  end
  if names ~= '' then
    note_names(job, names)
  end
  local piece = { n = new.n, ready_at = exact(math.max(now, run_at)), claims = 0, fence = 0, turn = '0', ref = '' }
  place(job, piece, is_withheld(job, piece) and 'w' or run_at > now and 'l' or 'r')
  save(job)
  return job.id, old and 'replaced' or 'new', job.s
end
