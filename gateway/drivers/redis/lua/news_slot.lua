-- Take a slot, or keep it for longer. KEYS[1] the slot: who has it. ARGV: who asks, for how many milliseconds. Returns 1 or 0.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
