-- Forgets jobs that ended first. ARGV behind the usual: before when, how many. Returns now, and how many it were.
local gone = redis.call('ZRANGEBYSCORE', BASE .. ':ended', '-inf', '(' .. ARGV[3], 'LIMIT', 0, ARGV[4])
for _, id in ipairs(gone) do
  local job = load(id)
  if job then
    erase(job)
  end
  redis.call('ZREM', BASE .. ':ended', id)
end
return { said(), 0, #gone }
