-- In front of every script about jobs: a job as its hash has it, and its pieces in streams.
--
-- KEYS[1] is the base of all keys of a partition. KEYS[2], where it is, is made: by it whoever waits until this is safe knows
-- that it was done on the server that they wait for. ARGV: now ('' is the server's time), the number of the partition.
--   BASE:j:ID     hash: s (three lines: its head, tokens in the order below; its pieces; the rest, JSON, not read here), x (its
--                 payload), k (its dedupe and debounce keys), o (its chunks that have lines), a and y (its answer),
--                 m (somebody else has met it, and relies on it)
--   BASE:r:QUEUE  stream of ready and claimed pieces, group `workers`; QUEUE:f holds those that go before the others
--   BASE:seen     hash by stream: up to where claims have been looked at, if there are too many for one look
--   BASE:workers  zset of workers by when they last asked for work or renewed a claim, in milliseconds of the server's clock
--   BASE:later    zset of pieces by the time at which they are ready
--   BASE:due      zset of jobs by deadline; 0: its end is due at once
--   BASE:depth    hash: pieces by queue and state; BASE:open hash: open jobs by tenant, '*' in all
--   BASE:all, BASE:t:TENANT streams of all jobs in the order in which they came; BASE:b:TENANT zset of batches
--   BASE:c:RUN    zset of the children of a run
--   BASE:ended    zset of ended jobs; BASE:held hash: when those ended that are kept for their dead letters
--   BASE:l:ID:CHUNK hash of lines; BASE:k:ID hash of complete chunks
local C, REV, STATE, STARTED, CREATED, RUN_AT, PAUSED, ENDS_AS, DEBOUNCED = 1, 2, 3, 4, 5, 6, 7, 8, 9
local TALLY, SEQ, KIND, TENANT, QUEUE, READS, PARENT, NEWS = 10, 18, 19, 20, 21, 23, 25, 26
local BASE, PARTITION = KEYS[1], ARGV[2]
local now = now_s(ARGV[1])
local clock = redis.call('TIME')
local real_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local readied, counts = 0, {}

local function exact(number)
  return string.format('%.17g', number)
end

local function write_counts()
  for name, by in pairs(counts) do
    if by ~= 0 then
      redis.call('HINCRBY', BASE .. ':depth', name, by)
    end
  end
  counts = {}
end

-- Ends a script. Returns now.
local function said()
  write_counts()
  if KEYS[2] then
    redis.call('SET', KEYS[2], '', 'PX', 30000)
  end
  return exact(now)
end

local function tokens_of(text)
  local tokens = {}
  for token in string.gmatch(text, '%S+') do
    tokens[#tokens + 1] = token
  end
  return tokens
end

local function load(id)
  local at = BASE .. ':j:' .. id
  local text = redis.call('HGET', at, 's')
  if not text then
    return nil
  end
  local head, pieces, rest = string.match(text, '^([^\n]*)\n([^\n]*)\n(.*)$')
  local job = { id = id, at = at, h = tokens_of(head), b = rest, s = text, pieces = {} }
  for n, state, ready_at, claims, fence, turn, ref in
    string.gmatch(pieces, '([^: ]+):([^: ]+):([^: ]+):([^: ]+):([^: ]+):([^: ]+):([^: ]*)')
  do
    job.pieces[n] = {
      n = n, state = state, ready_at = ready_at, claims = tonumber(claims), fence = tonumber(fence), turn = turn, ref = ref,
    }
  end
  return job
end

local function pieces_of(job)
  local texts = {}
  for n, piece in pairs(job.pieces) do
    texts[#texts + 1] = table.concat({
      n, piece.state, piece.ready_at, string.format('%.0f', piece.claims), string.format('%.0f', piece.fence), piece.turn,
      piece.ref,
    }, ':')
  end
  return table.concat(texts, ' ')
end

-- Writes a job; every write counts, so that nobody overwrites what they have not seen.
local function save(job)
  job.h[C] = string.format('%.0f', tonumber(job.h[C]) + 1)
  job.s = table.concat(job.h, ' ') .. '\n' .. pieces_of(job) .. '\n' .. job.b
  redis.call('HSET', job.at, 's', job.s)
end

local function count(job, state, by)
  local name = job.h[QUEUE] .. ':' .. state
  counts[name] = (counts[name] or 0) + by
end

-- Notes that a worker is at work; after 5 s without a word it does not count. Returns how many are, this one included.
local function at_work(worker)
  local real_ms = math.floor(real_us / 1000)
  redis.call('ZADD', BASE .. ':workers', real_ms, worker)
  redis.call('ZREMRANGEBYSCORE', BASE .. ':workers', '-inf', real_ms - 5000)
  redis.call('ZREMRANGEBYSCORE', BASE .. ':workers', '(' .. real_ms, '+inf') -- of before the clock was set back
  return redis.call('ZCARD', BASE .. ':workers')
end

-- 'n': in line; 'f': before the others.
local function stream_of(queue, way)
  return BASE .. ':r:' .. queue .. (way == 'f' and ':f' or '')
end

local function entry_of(job, piece)
  return stream_of(job.h[QUEUE], string.sub(piece.ref, 1, 1)), string.sub(piece.ref, 2)
end

local function later_of(job, piece)
  return piece.turn .. ':' .. piece.n .. ':' .. job.id
end

-- Takes a piece from where it waits or runs.
local function unplace(job, piece)
  if piece.state == 'r' or piece.state == 'c' then
    local stream, entry = entry_of(job, piece)
    if piece.state == 'c' then
      redis.call('XACK', stream, 'workers', entry)
    end
    redis.call('XDEL', stream, entry)
  elseif piece.state == 'l' then
    redis.call('ZREM', BASE .. ':later', later_of(job, piece))
  end
  count(job, piece.state, -1)
  piece.ref = ''
end

-- Has a piece wait: r(eady), l(ater) or w(ithheld).
local function place(job, piece, state, way)
  piece.state, piece.ref = state, ''
  if state == 'r' then
    local stream = stream_of(job.h[QUEUE], way)
    if redis.call('EXISTS', stream) == 0 then
      redis.call('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
    end
    piece.ref = (way == 'f' and 'f' or 'n') .. redis.call('XADD', stream, '*', 'j', job.id, 'p', piece.n)
    readied = readied + 1
  else
    if piece.turn == '0' then
      piece.turn = string.format('%015d', redis.call('INCR', BASE .. ':turn'))
    end
    if state == 'l' then
      redis.call('ZADD', BASE .. ':later', piece.ready_at, later_of(job, piece))
    end
  end
  count(job, state, 1)
  job.pieces[piece.n] = piece
end

-- Tells whether a piece is not to be given: its job is paused or to stop. A run that is to stop goes on: its worker ends it.
local function is_withheld(job, piece)
  local is_paused, is_to_stop = job.h[PAUSED] == '1', job.h[ENDS_AS] ~= '-'
  if job.h[KIND] == 'run' then
    return is_paused and not is_to_stop
  end
  return piece.n ~= '-2' and (is_paused or is_to_stop)
end

-- Tells whether a job's deadline has passed: it is seen to by whoever hears of it.
local function is_late(job)
  local due = redis.call('ZSCORE', BASE .. ':due', job.id)
  return due and tonumber(due) <= now
end

-- Makes ready what has waited for its time, at most so many; returns how many.
local function promote(most)
  local due = redis.call('ZRANGEBYSCORE', BASE .. ':later', '-inf', exact(now), 'LIMIT', 0, most)
  local promoted = #due
  for _, member in ipairs(due) do
    local n, id = string.match(member, '^%d+:([^:]+):(.*)$')
    local job = load(id)
    local piece = job and job.pieces[n]
    if piece and piece.state == 'l' and is_late(job) then
      promoted = promoted - 1
    elseif piece and piece.state == 'l' then
      unplace(job, piece)
      place(job, piece, 'r')
      if job.h[STATE] == 'scheduled' then
        job.h[STATE] = 'queued'
        job.h[REV] = string.format('%.0f', tonumber(job.h[REV]) + 1)
      end
      save(job)
    else
      redis.call('ZREM', BASE .. ':later', member)
    end
  end
  return promoted
end

-- Blobs: the files that have one, the open jobs that read one, and those that nobody needs any more.
local function is_used(blob)
  return redis.call('HEXISTS', BASE .. ':blobs', blob) == 1 or redis.call('HEXISTS', BASE .. ':reads', blob) == 1
end

local function discard(blob)
  if blob ~= '' then
    if is_used(blob) then
      redis.call('SADD', BASE .. ':blocked', blob)
    else
      redis.call('ZADD', BASE .. ':garbage', 'NX', exact(now), blob)
    end
  end
end

local function use(uses, blob)
  if redis.call('HINCRBY', BASE .. uses, blob, 1) == 1 and redis.call('ZREM', BASE .. ':garbage', blob) == 1 then
    redis.call('SADD', BASE .. ':blocked', blob)
  end
end

local function unuse(uses, blob)
  if redis.call('HINCRBY', BASE .. uses, blob, -1) < 1 then
    redis.call('HDEL', BASE .. uses, blob)
    if not is_used(blob) and redis.call('SREM', BASE .. ':blocked', blob) == 1 then
      redis.call('ZADD', BASE .. ':garbage', 'NX', exact(now), blob)
    end
  end
end

-- What a job reads, or whose child it is: a name that is quoted, with a mark in front, so that it is one token and never empty.
local function name_of(token)
  local name = string.gsub(string.sub(token, 2), '%%(%x%x)', function(hex)
    return string.char(tonumber(hex, 16))
  end)
  return name
end

local function reads_of(job)
  return name_of(job.h[READS])
end

local function parent_of(job)
  return name_of(job.h[PARENT])
end
