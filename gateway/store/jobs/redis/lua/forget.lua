-- Forgets jobs that ended first. ARGV behind the usual: before when, how many. Returns now, and how many it were.
local gone = redis.call('ZRANGEBYSCORE', BASE .. ':ended', '-inf', '(' .. ARGV[3], 'LIMIT', 0, ARGV[4])
for _, id in ipairs(gone) do
  local job = load(id)
  if job then
    local h = job.h
    for _, name in ipairs(tokens_of(redis.call('HGET', job.at, 'k') or '')) do
      local at = BASE .. ':' .. string.sub(name, 1, 1) .. ':' .. string.sub(name, 2)
      local value = redis.call('GET', at)
      if value and string.match(value, '^%S+') == id then
        redis.call('DEL', at)
      end
    end
    redis.call('XDEL', BASE .. ':all', h[SEQ])
    redis.call('XDEL', BASE .. ':t:' .. h[TENANT], h[SEQ])
    if redis.call('XLEN', BASE .. ':t:' .. h[TENANT]) == 0 then
      redis.call('DEL', BASE .. ':t:' .. h[TENANT])
    end
    redis.call('ZREM', BASE .. ':b:' .. h[TENANT], id)
    redis.call('UNLINK', job.at)
  end
  redis.call('ZREM', BASE .. ':ended', id)
end
return { said(), 0, #gone }
