-- The rows of a partition: an LRU in the order of their arrival, whose values are together in KEYS[5].
local ROWS = KEYS[5]

local function check_rows()
  check()
  if redis.call('HLEN', ROWS) ~= entries() then
    redis.call('UNLINK', ORDER, ENDS, FACTS, ROWS)
  end
end

local function take_out_row(id)
  redis.call('HDEL', ROWS, id)
  return take_out(id)
end

-- The values live as long as what is known of them.
local function live_as_long()
  local ms = redis.call('PTTL', FACTS)
  if redis.call('PTTL', ROWS) < ms then
    redis.call('PEXPIRE', ROWS, ms)
  end
end

local function keep_newest(most)
  local over = math.min(AT_ONCE, entries() - most)
  if over > 0 then
    for _, id in ipairs(redis.call('ZRANGE', ORDER, 0, over - 1)) do
      take_out_row(id)
    end
  end
end
