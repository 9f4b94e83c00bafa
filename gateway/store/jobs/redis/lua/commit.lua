-- Keeps results of lines, the first of each. ARGV behind the usual: id, piece, fence, number of dead letters; per letter: its
-- line, and the letter; per line: its number, whether it failed, input, cached and output tokens, cost, tokens of reasoning, text.
-- Returns now, and '' where the claim has ended, else as `renew`.
local job = load(ARGV[3])
local piece = job and job.pieces[ARGV[4]]
if not piece or piece.state ~= 'c' or piece.fence ~= tonumber(ARGV[5]) then
  return { said(), 0, '' }
end
local h, lines = job.h, BASE .. ':l:' .. job.id .. ':' .. ARGV[4]
local is_first = redis.call('EXISTS', lines) == 0
local added, fresh, is_fresh = { 0, 0, 0, 0, 0, 0, 0 }, 0, {}
local letters = tonumber(ARGV[6])
for at = 7 + (LETTER + 1) * letters, #ARGV, 8 do
  local about = table.concat({ unpack(ARGV, at + 1, at + 6) }, ' ')
  if redis.call('HSETNX', lines, ARGV[at], about .. '\n' .. ARGV[at + 7]) == 1 then
    fresh = fresh + 1
    is_fresh[ARGV[at]] = true
    added[ARGV[at + 1] == '1' and 2 or 1] = added[ARGV[at + 1] == '1' and 2 or 1] + 1
    for place_of = 3, 7 do
      added[place_of] = added[place_of] + tonumber(ARGV[at + place_of - 1])
    end
  end
end
if fresh > 0 then
  if is_first then
    redis.call('HSET', job.at, 'o', (redis.call('HGET', job.at, 'o') or '') .. ' ' .. ARGV[4])
  end
  for place_of = 1, 7 do
    h[TALLY + place_of] = exact(tonumber(h[TALLY + place_of]) + added[place_of])
  end
  h[REV] = string.format('%.0f', tonumber(h[REV]) + 1)
  piece.claims = 0
  save(job)
  for at = 7, 6 + (LETTER + 1) * letters, LETTER + 1 do
    if is_fresh[ARGV[at]] then
      write_letters(at + 1, 1)
    end
  end
end
return { said(), 0, h[ENDS_AS] .. ' ' .. h[PAUSED] }
