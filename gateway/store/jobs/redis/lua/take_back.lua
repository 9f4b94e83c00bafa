-- Removes jobs of which whoever sent them was told that they were not taken, unless somebody has met them since.
-- ARGV behind the usual: ids. Returns now, and how many it were.
local gone = 0
for at = 3, #ARGV do
  local job = load(ARGV[at])
  if job and job.h[C] == '1' then
    for _, piece in pairs(job.pieces) do
      unplace(job, piece)
    end
    redis.call('ZREM', BASE .. ':due', job.id)
    close(job)
    erase(job)
    gone = gone + 1
  end
end
return { said(), 0, gone }
