-- Gives pieces to a worker, takes over those whose workers were not heard of, and lets time pass.
-- ARGV behind the usual: the worker, milliseconds of a lease, 1 to look at all that time has done, how many pieces may become
-- ready, lanes, number of asks; per ask: segment, most.
-- Returns now, how many became ready, ids of jobs whose deadlines have passed or that are to end, how many pieces became due,
-- works (id, piece, fence, claims, text of the job, payload), depths, since when the first of them are ready, when the first
-- of those is ready that wait for their time, how many jobs are open, and how many workers share the work.
local worker, lease_ms, is_look, lanes = ARGV[3], ARGV[4], ARGV[5] == '1', tokens_of(ARGV[7])
-- Behind so many bytes of payloads nothing more is given: an answer that takes too long to arrive is given to nobody.
local MOST_BYTES, given_bytes = 4194304, 0
local promoted = promote(tonumber(ARGV[6]))
write_counts()
local works = {}
local workers = tonumber(ARGV[8]) > 0 and at_work(worker) or redis.call('ZCARD', BASE .. ':workers')

-- A piece that must not run: it waits aside until its job has been seen to.
local function withhold(job, piece)
  piece.state = 'c'
  count(job, 'c', 1)
  count(job, 'r', -1)
  unplace(job, piece)
  place(job, piece, 'w')
  save(job)
end

local function give(job, piece, was)
  local h = job.h
  count(job, was, -1)
  count(job, 'c', 1)
  piece.state, piece.claims, piece.fence = 'c', piece.claims + 1, math.max(piece.fence + 1, real_us)
  h[NEWS] = '0'
  if h[STATE] ~= 'running' then
    h[STATE] = 'running'
    h[REV] = string.format('%.0f', tonumber(h[REV]) + 1)
    if h[STARTED] == '-' then
      h[STARTED] = exact(now)
    end
  end
  save(job)
  local payload = redis.call('HGET', job.at, 'x') or ''
  given_bytes = given_bytes + #payload
  works[#works + 1] = { job.id, piece.n, string.format('%.0f', piece.fence), piece.claims, job.s, payload }
end

-- Returns how many pieces of a queue this worker may take besides those that it has: as many as there are for each of those at
-- work, rounded up. `ready` and `old`: the pieces that wait, and the claims of the dead.
local function fair_room(queue, ready, old)
  if workers < 2 then
    return math.huge
  end
  local mine, held = 0, 0
  for _, way in ipairs({ 'f', 'n' }) do
    local stream = stream_of(queue, way)
    local of_each = redis.call('EXISTS', stream) == 1 and redis.call('XPENDING', stream, 'workers')[4] or {}
    for _, one in ipairs(of_each) do
      if redis.call('ZSCORE', BASE .. ':workers', one[1]) then
        held = held + tonumber(one[2])
      end
      if one[1] == worker then
        mine = tonumber(one[2]) + mine
      end
    end
  end
  return math.ceil((ready + old + held) / workers) - mine
end

-- Gives what is ready, at most so many; returns how many.
local function claim(queue, way, room)
  local stream, given, looked = stream_of(queue, way), 0, 0
  while
    given < room and given_bytes < MOST_BYTES and looked < room + 50 and redis.call('EXISTS', stream) == 1
  do
    local got = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', 1, 'STREAMS', stream, '>')
    if not got then
      break
    end
    looked = looked + 1
    local entry = got[1][2][1]
    local job = load(entry[2][2])
    local piece = job and job.pieces[entry[2][4]]
    if not piece or piece.state ~= 'r' or piece.ref ~= way .. entry[1] then
      redis.call('XACK', stream, 'workers', entry[1])
      redis.call('XDEL', stream, entry[1])
    elseif is_late(job) then
      withhold(job, piece)
    else
      give(job, piece, 'r')
      given = given + 1
    end
  end
  return given
end

-- Claims that one look sees, at most: the next goes on behind them. Whoever has claims looks once a second, so that many are
-- seen as soon as few.
local MOST_SEEN = 1000

-- Returns the claims among the next of a stream that are older than a lease, and the place behind them.
local function grown_old(stream)
  local seen = redis.call('XPENDING', stream, 'workers', redis.call('HGET', BASE .. ':seen', stream) or '-', '+', MOST_SEEN)
  local old = {}
  for _, pending in ipairs(seen) do
    if pending[3] >= tonumber(lease_ms) then
      old[#old + 1] = pending
    end
  end
  return old, #seen == MOST_SEEN and '(' .. seen[MOST_SEEN][1] or nil
end

-- Takes over pieces whose leases are over, at most so many; returns how many.
local function take_over(queue, way, room, ready)
  local stream, given = stream_of(queue, way), 0
  if redis.call('EXISTS', stream) == 0 then
    return 0
  end
  local idle, behind = grown_old(stream)
  if #idle > 0 and room > 0 then
    room = math.min(room, fair_room(queue, ready, #idle))
  end
  for number, pending in ipairs(idle) do
    if number > math.max(10, room) then
      behind = pending[1]
      break
    end
    local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
    local job = entry and load(entry[2][2])
    local piece = job and job.pieces[entry[2][4]]
    if not piece or piece.state ~= 'c' or piece.ref ~= way .. pending[1] then
      redis.call('XACK', stream, 'workers', pending[1])
      redis.call('XDEL', stream, pending[1])
    elseif is_late(job) or is_withheld(job, piece) then
      unplace(job, piece)
      place(job, piece, 'w')
      save(job)
      if job.h[ENDS_AS] ~= '-' then
        redis.call('ZADD', BASE .. ':due', 0, job.id)
      end
    elseif given < room and given_bytes < MOST_BYTES then
      redis.call('XCLAIM', stream, 'workers', worker, 0, pending[1], 'JUSTID')
      give(job, piece, 'c')
      given = given + 1
    elseif room > 0 then
      behind = pending[1]
      break
    end
  end
  if behind then
    redis.call('HSET', BASE .. ':seen', stream, behind)
  else
    redis.call('HDEL', BASE .. ':seen', stream)
  end
  return given
end

local is_asked = {}
for at = 9, 7 + 2 * tonumber(ARGV[8]), 2 do
  local segment, room = ARGV[at], tonumber(ARGV[at + 1])
  is_asked[segment] = true
  local queues, names = {}, {}
  for _, lane in ipairs(lanes) do
    for _, urgency in ipairs({ 'u', 'n' }) do
      local queue = segment .. '/' .. lane .. '/' .. urgency
      queues[#queues + 1] = queue
      names[#names + 1] = queue .. ':r'
      names[#names + 1] = queue .. ':c'
    end
  end
  local numbers = redis.call('HMGET', BASE .. ':depth', unpack(names))
  for place_of, queue in ipairs(queues) do
    if is_look and tonumber(numbers[2 * place_of] or '0') > 0 then
      local ready = tonumber(numbers[2 * place_of - 1] or '0')
      room = room - take_over(queue, 'f', room, ready)
      room = room - take_over(queue, 'n', room, ready)
    end
  end
  for place_of, queue in ipairs(queues) do
    local ready = tonumber(numbers[2 * place_of - 1] or '0')
    if room > 0 and ready > 0 then
      local fair = math.min(room, fair_room(queue, ready, 0))
      local given = claim(queue, 'f', fair)
      given = given + claim(queue, 'n', fair - given)
      room = room - given
    end
  end
end

write_counts()
if is_look then -- in queues that this worker has no room for, what is to stop must not wait for it
  local there = redis.call('HGETALL', BASE .. ':depth')
  for at = 1, #there, 2 do
    local queue = string.match(there[at], '^(.*):c$')
    if queue and there[at + 1] ~= '0' and not is_asked[string.match(queue, '^[^/]*')] then
      take_over(queue, 'f', 0, 0)
      take_over(queue, 'n', 0, 0)
    end
  end
end

local moment = said()
local due = redis.call('ZRANGEBYSCORE', BASE .. ':due', '-inf', exact(now), 'LIMIT', 0, 100)
local depths, oldest = redis.call('HGETALL', BASE .. ':depth'), {}
-- Since when the first of the pieces of a stream is ready: of those that wait, or of those that workers have.
local function since(stream, state)
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  local entry
  if state == 'r' then
    local last = redis.call('XINFO', 'GROUPS', stream)[1][8]
    entry = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
  else
    local pending = redis.call('XPENDING', stream, 'workers', '-', '+', 1)[1]
    entry = pending and redis.call('XRANGE', stream, pending[1], pending[1])[1]
  end
  local job = entry and load(entry[2][2])
  local piece = job and job.pieces[entry[2][4]]
  return piece and piece.ready_at
end

if is_look then
  for at = 1, #depths, 2 do
    local queue, state = string.match(depths[at], '^(.*):(.)$')
    if depths[at + 1] == '0' then
      redis.call('HDEL', BASE .. ':depth', depths[at])
    elseif state == 'r' or state == 'c' then
      for _, way in ipairs({ 'f', 'n' }) do
        local ready_at = since(stream_of(queue, way), state)
        if ready_at then
          oldest[#oldest + 1] = depths[at]
          oldest[#oldest + 1] = ready_at
        end
      end
    end
  end
end
local open = redis.call('HGET', BASE .. ':open', '*') or '0'
local first = is_look and redis.call('ZRANGE', BASE .. ':later', 0, 0, 'WITHSCORES')[2] or ''
return { moment, readied, due, promoted, works, depths, oldest, first, open, workers }
