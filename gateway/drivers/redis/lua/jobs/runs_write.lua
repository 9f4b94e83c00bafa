-- Writes a run's record, if it is as it was seen. ARGV behind the usual: id, its writes as seen ('': there was none), who writes,
-- the record, the tenant's room. Returns now, whether it was written, and how many runs and steps had to go.
local id = ARGV[3]
if (redis.call('HGET', run_at(id), 'w') or '') ~= ARGV[4] then
  return { said(), 0, 0, 0 }
end
touch(id, ARGV[6])
local writers = redis.call('HGET', run_at(id), 'x') .. ARGV[5] .. ' '
redis.call('HSET', run_at(id), 'r', ARGV[6], 'x', string.sub(writers, -256))
redis.call('HINCRBY', run_at(id), 'w', 1)
return { said(), 0, 1, make_room(id, '', ARGV[7]) }
