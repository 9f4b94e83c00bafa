-- Extends claims. ARGV behind the usual: the worker; per claim: id, piece, fence.
-- Returns now, and for each claim '' if it has ended, else what its job was asked for: its end ('-': none), whether it is paused.
at_work(ARGV[3])
local answers = {}
for at = 4, #ARGV, 3 do
  local job = load(ARGV[at])
  local piece = job and job.pieces[ARGV[at + 1]]
  local answer = ''
  if piece and piece.state == 'c' and piece.fence == tonumber(ARGV[at + 2]) then
    local stream, entry = entry_of(job, piece)
    redis.call('XCLAIM', stream, 'workers', ARGV[3], 0, entry, 'FORCE', 'JUSTID')
    answer = job.h[ENDS_AS] .. ' ' .. job.h[PAUSED]
  end
  answers[#answers + 1] = answer
end
return { said(), 0, answers }
