-- Runs and their steps; in front of the scripts about them. An id is `TENANT/RUN`, the tenant quoted, so that it is one name.
--   BASE:rn:ID    hash: r (its record), w (counts the writes of that), x (who wrote it last), p (its place), c (when it came),
--                 t (when it was touched), b (its bytes), n (its steps), s:STEP (two lines: place, bytes, until when; the rest)
--   BASE:rx:ID    hash of bodies by step
--   BASE:rl, BASE:rl:TENANT zsets of ids by place; BASE:ro, BASE:ro:TENANT zsets of ids by when they were touched
--   BASE:rb       hash: bytes by tenant; BASE:rs the last place
local RUN_BYTES = 1024

local function run_at(id)
  return BASE .. ':rn:' .. id
end

local function next_place()
  local place_of = string.format('%.0f', math.max(tonumber(redis.call('GET', BASE .. ':rs') or '0') + 1, real_us))
  redis.call('SET', BASE .. ':rs', place_of)
  return place_of
end

local function whose(id)
  return string.match(id, '^([^/]*)/')
end

local function weigh(id, bytes)
  redis.call('HINCRBY', run_at(id), 'b', string.format('%.0f', bytes))
  redis.call('HINCRBY', BASE .. ':rb', whose(id), string.format('%.0f', bytes))
end

-- Begins a run with this record, or touches the one that is there.
local function touch(id, record)
  if redis.call('EXISTS', run_at(id)) == 0 then
    local place_of = next_place()
    redis.call('HSET', run_at(id), 'r', record, 'w', 0, 'x', '', 'p', place_of, 'c', exact(now), 'b', 0, 'n', 0)
    weigh(id, RUN_BYTES)
    redis.call('ZADD', BASE .. ':rl', place_of, id)
    redis.call('ZADD', BASE .. ':rl:' .. whose(id), place_of, id)
  end
  redis.call('HSET', run_at(id), 't', exact(now))
  redis.call('ZADD', BASE .. ':ro', exact(now), id)
  redis.call('ZADD', BASE .. ':ro:' .. whose(id), exact(now), id)
end

-- Takes a step away; returns its bytes.
local function drop_step(id, step)
  local size = string.match(redis.call('HGET', run_at(id), 's:' .. step), '^%S+ (%S+)')
  redis.call('HDEL', run_at(id), 's:' .. step)
  redis.call('HDEL', BASE .. ':rx:' .. id, step)
  redis.call('HINCRBY', run_at(id), 'n', -1)
  weigh(id, 0 - tonumber(size))
  return tonumber(size)
end

-- Takes a run away; returns its bytes, or nil where there is none.
local function drop_run(id)
  local bytes = tonumber(redis.call('HGET', run_at(id), 'b') or nil)
  for _, list in ipairs({ ':rl', ':ro' }) do
    redis.call('ZREM', BASE .. list, id)
    redis.call('ZREM', BASE .. list .. ':' .. whose(id), id)
  end
  if not bytes then
    return nil
  end
  if redis.call('HINCRBY', BASE .. ':rb', whose(id), string.format('%.0f', 0 - bytes)) < 1 then
    redis.call('HDEL', BASE .. ':rb', whose(id))
  end
  redis.call('UNLINK', run_at(id), BASE .. ':rx:' .. id)
  return bytes
end

-- Removes other runs of the tenant, then other steps of the run, the oldest first, until the rest fits; returns how many.
local function make_room(id, step, most)
  local over, gone = tonumber(redis.call('HGET', BASE .. ':rb', whose(id)) or '0') - tonumber(most), 0
  while over > 0 do
    local oldest = redis.call('ZRANGE', BASE .. ':ro:' .. whose(id), 0, 1)
    local other = oldest[1] ~= id and oldest[1] or oldest[2]
    if not other then
      break
    end
    over, gone = over - (drop_run(other) or 0), gone + 1
  end
  if over > 0 then
    local steps, rows = {}, redis.call('HGETALL', run_at(id))
    for at = 1, #rows, 2 do
      local name = string.match(rows[at], '^s:(.*)$')
      if name and name ~= step then
        steps[#steps + 1] = { tonumber(string.match(rows[at + 1], '^(%S+)')), name }
      end
    end
    table.sort(steps, function(one, other)
      return one[1] < other[1]
    end)
    for _, found in ipairs(steps) do
      if over > 0 then
        over, gone = over - drop_step(id, found[2]), gone + 1
      end
    end
  end
  return gone
end
