-- Forgets jobs that ended first, but no children of runs that have not. ARGV behind the usual: before when, how many to look at,
-- how many of the first are known to be needed. Returns now, how many it were, and how many more are needed.
local found = redis.call('ZRANGEBYSCORE', BASE .. ':ended', '-inf', '(' .. ARGV[3], 'LIMIT', ARGV[5], ARGV[4])
local gone, ends = 0, { succeeded = true, failed = true, cancelled = true, expired = true }
for _, id in ipairs(found) do
  local job = load(id)
  local run = job and parent_of(job) ~= '' and load(parent_of(job))
  if not run or ends[run.h[STATE]] then
    if job then
      erase(job)
    end
    redis.call('ZREM', BASE .. ':ended', id)
    gone = gone + 1
  end
end
return { said(), 0, gone, #found - gone }
