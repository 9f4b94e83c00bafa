-- Removes all that there is of a job.
local function erase(job)
  local h = job.h
  for _, name in ipairs(tokens_of(redis.call('HGET', job.at, 'k') or '')) do
    local at = BASE .. ':' .. string.sub(name, 1, 1) .. ':' .. string.sub(name, 2)
    local value = redis.call('GET', at)
    if value and string.match(value, '^%S+') == job.id then
      redis.call('DEL', at)
    end
  end
  redis.call('XDEL', BASE .. ':all', h[SEQ])
  redis.call('XDEL', BASE .. ':t:' .. h[TENANT], h[SEQ])
  if redis.call('XLEN', BASE .. ':t:' .. h[TENANT]) == 0 then
    redis.call('DEL', BASE .. ':t:' .. h[TENANT])
  end
  redis.call('ZREM', BASE .. ':b:' .. h[TENANT], job.id)
  if parent_of(job) ~= '' then
    redis.call('ZREM', BASE .. ':c:' .. parent_of(job), job.id)
  end
  redis.call('UNLINK', job.at, BASE .. ':ev:' .. job.id)
end

-- A job is not open any more.
local function close(job)
  if parent_of(job) == '' then
    redis.call('HINCRBY', BASE .. ':open', '*', -1)
    if redis.call('HINCRBY', BASE .. ':open', job.h[TENANT], -1) < 1 then
      redis.call('HDEL', BASE .. ':open', job.h[TENANT])
    end
  end
  if reads_of(job) ~= '' then
    unuse(':reads', reads_of(job))
  end
end
