-- Keeps results of lines, the first of each, for several claims. ARGV behind the usual; per claim: id, piece, fence, number of
-- dead letters, number of lines; per letter: its line, and the letter; per line: its number, whether it failed, input, cached and
-- output tokens, cost, tokens of reasoning, text.
-- Returns now, and for each claim '' where it has ended, else as `renew`.
local LINE = 8

local function commit(at, letters, lines_at, lines)
  local job = load(ARGV[at])
  local piece = job and job.pieces[ARGV[at + 1]]
  if not piece or piece.state ~= 'c' or piece.fence ~= tonumber(ARGV[at + 2]) then
    return ''
  end
  local h, kept = job.h, BASE .. ':l:' .. job.id .. ':' .. ARGV[at + 1]
  local is_first = redis.call('EXISTS', kept) == 0
  local added, fresh, is_fresh = { 0, 0, 0, 0, 0, 0, 0 }, 0, {}
  for line = lines_at, lines_at + LINE * (lines - 1), LINE do
    local about = table.concat({ unpack(ARGV, line + 1, line + 6) }, ' ')
    if redis.call('HSETNX', kept, ARGV[line], about .. '\n' .. ARGV[line + 7]) == 1 then
      fresh = fresh + 1
      is_fresh[ARGV[line]] = true
      local outcome = ARGV[line + 1] == '1' and 2 or 1
      added[outcome] = added[outcome] + 1
      for place_of = 3, 7 do
        added[place_of] = added[place_of] + tonumber(ARGV[line + place_of - 1])
      end
    end
  end
  if fresh > 0 then
    if is_first then
      redis.call('HSET', job.at, 'o', (redis.call('HGET', job.at, 'o') or '') .. ' ' .. ARGV[at + 1])
    end
    for place_of = 1, 7 do
      h[TALLY + place_of] = exact(tonumber(h[TALLY + place_of]) + added[place_of])
    end
    h[REV] = string.format('%.0f', tonumber(h[REV]) + 1)
    piece.claims = 1
    save(job)
    for letter = at + 5, at + 4 + (LETTER + 1) * letters, LETTER + 1 do
      if is_fresh[ARGV[letter]] then
        write_letters(letter + 1, 1)
      end
    end
  end
  return h[ENDS_AS] .. ' ' .. h[PAUSED]
end

local answers, at = {}, 3
while at <= #ARGV do
  local letters, lines = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local lines_at = at + 5 + (LETTER + 1) * letters
  answers[#answers + 1] = commit(at, letters, lines_at, lines)
  at = lines_at + LINE * lines
end
return { said(), 0, answers }
