-- Drop the values of what is gone, unless there is a new one; and forget what has lost its value.
-- KEYS[5] and on: values, each with its parts. ARGV: their ids.
check()
for which, id in ipairs(ARGV) do
  local value, parts = KEYS[3 + 2 * which], KEYS[4 + 2 * which]
  if redis.call('SREM', GONE, id) == 1 then
    redis.call('UNLINK', value, parts)
  elseif redis.call('EXISTS', value) == 0 then
    take_out(id)
  end
end
return 1
