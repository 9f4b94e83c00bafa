-- Removes a job of which whoever sent it was told that it may not have been taken, unless somebody has met it since.
-- ARGV behind the usual: its id, until when it was sent. Returns now, 0, and 1 if it is at work and should be stopped.
local job = load(ARGV[3])
redis.call('SET', back_at(ARGV[3]), ARGV[4], 'PX', 120000)
if not job or redis.call('HEXISTS', job.at, 'm') == 1 then
  return { said(), 0, 0 }
end
local is_begun = job.h[STATE] ~= 'queued' and job.h[STATE] ~= 'scheduled'
for _, piece in pairs(job.pieces) do
  is_begun = is_begun or piece.claims > 0 or piece.fence > 0
end
if is_begun then
  return { said(), 0, 1 }
end
for _, piece in pairs(job.pieces) do
  unplace(job, piece)
end
redis.call('ZREM', BASE .. ':due', job.id)
close(job)
erase(job)
return { said(), 0, 0 }
