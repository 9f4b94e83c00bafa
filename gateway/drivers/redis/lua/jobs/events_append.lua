-- Adds parts to logs of responses, for several claims. ARGV behind the usual: most bytes of a log, the channel of those who
-- read logs, this replica; per part: id, piece, fence, first and last event, frames.
--   BASE:j:ID    in field e: the log's fence, the first event that it lacks, its bytes, 1 if it is cut
--   BASE:ev:ID   stream of parts, each under its last event and one more
--   BASE:er:ID   the replica where somebody waits for more; '*': several
-- Returns now, 0, and for each part '' where the claim has ended, else as `renew`.
local most, channel, replica = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local told = {}

local function append(at)
  local job = load(ARGV[at])
  local piece = job and job.pieces[ARGV[at + 1]]
  if not piece or piece.state ~= 'c' or piece.fence ~= tonumber(ARGV[at + 2]) then
    return ''
  end
  local parts, answer = BASE .. ':ev:' .. job.id, job.h[ENDS_AS] .. ' ' .. job.h[PAUSED]
  local fence, next_event, size, cut = unpack(tokens_of(redis.call('HGET', job.at, 'e') or ''))
  if fence ~= ARGV[at + 2] then
    if fence then
      redis.call('UNLINK', parts)
    end
    fence, next_event, size, cut = ARGV[at + 2], '0', '0', '0'
  end
  local first, last, frames = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  if cut == '1' or last < tonumber(next_event) then
    return answer
  end
  size = tonumber(size) + #frames
  if first == tonumber(next_event) and size <= most then
    redis.call('XADD', parts, string.format('%.0f-0', last + 1), 'f', ARGV[at + 3], 'd', frames)
    next_event = string.format('%.0f', last + 1)
  else
    redis.call('UNLINK', parts)
    next_event, size, cut = '0', 0, '1'
  end
  redis.call('HSET', job.at, 'e', table.concat({ fence, next_event, string.format('%.0f', size), cut }, ' '))
  if not told[job.id] then
    told[job.id] = true
    local reader = redis.call('GET', BASE .. ':er:' .. job.id)
    if reader and reader ~= replica then
      redis.call('PUBLISH', channel, replica .. ' ' .. job.id)
    end
  end
  return answer
end

local answers = {}
for at = 6, #ARGV, 6 do
  answers[#answers + 1] = append(at)
end
return { said(), 0, answers }
