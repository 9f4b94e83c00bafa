-- One record: who runs it, or what came of it.
--
-- KEYS[5]  the record: state (`running` or `done`), asked (a fingerprint), nonce and fence of its holder, ends (of its lease,
--          or when it is forgotten), value (of `done`)
-- KEYS[6]  those that run: id -> the end of the lease
-- KEYS[7]  fences: the first and the last that were given since the server has lost all it had, or ever
-- KEYS[8]  the place of the value's parts
-- KEYS[9]  parts that were put aside
local RECORD, RUNNING = KEYS[5], KEYS[6]

local function look()
  local found = redis.call('HMGET', RECORD, 'state', 'asked', 'nonce', 'fence', 'ends')
  return { state = found[1], asked = found[2], nonce = found[3], fence = found[4], ends = tonumber(found[5] or '0') }
end

-- By the nonce of its claim a holder is known, even if it never heard of its fence; one that has forgotten it, by its fence.
local function is_held(record, fence, nonce)
  if nonce == '' then
    return record.state == 'running' and record.fence == fence
  end
  return record.state == 'running' and record.nonce == nonce
end

-- Whoever comes may have it.
local function is_free(record, now)
  return not record.state or record.ends <= now
end

-- It runs from now on; one that holds it may come late, so it is kept for longer than its lease. What it was before is
-- listed no more, nor to be dropped: whoever comes to do so later would drop what runs.
local function run(id, asked, nonce, fence, now, lease, late)
  take_out(id)
  redis.call('SREM', GONE, id)
  redis.call('HSET', RECORD, 'state', 'running', 'asked', asked, 'nonce', nonce, 'fence', fence, 'ends', now + lease)
  redis.call('PEXPIRE', RECORD, ms_of(lease + late))
  redis.call('ZADD', RUNNING, now + lease, id)
  redis.call('PEXPIRE', RUNNING, ms_of(lease + late))
end

-- Whether the server has lost what it knew of who holds this fence: it has given none so low, or none so high.
local function has_lost(fence)
  local given = redis.call('HMGET', KEYS[7], 'first', 'last')
  return not given[1] or tonumber(given[1]) > tonumber(fence) or tonumber(given[2]) < tonumber(fence)
end
