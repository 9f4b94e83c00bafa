-- Writes a job after one step, if nobody has written it meanwhile, and takes the jobs that follow from it.
-- ARGV behind the usual: id, the write count that was seen, head, rest ('': as it was), score in `due` ('=': as it was, '': none),
-- when it ended ('': it has not now), whether its payload goes, about its answer ('': none), the answer's body,
-- number of the chunk that is complete ('': none), that chunk as JSON, number of changes of pieces, per change: piece,
-- state ('-': it goes), ready at, claims, fence, way; number of dead letters, these; then the jobs that follow.
-- Returns now, how many became ready, whether it was written, and the text of the job as it is now ('': it is gone).

-- A run hears that a child of it has ended: it is ready if it is parked, and otherwise once its claim has ended.
local function wake(run)
  if run.h[STATE] == 'waiting' then
    run.h[STATE] = 'running'
    run.h[REV] = string.format('%.0f', tonumber(run.h[REV]) + 1)
    local piece = { n = '0', ready_at = exact(now), claims = 0, fence = 0, turn = '0', ref = '' }
    place(run, piece, is_withheld(run, piece) and 'w' or 'r')
    save(run)
  elseif run.h[NEWS] == '0' and run.pieces['0'] and run.pieces['0'].state == 'c' then
    run.h[NEWS] = '1'
    save(run)
  end
end

local id = ARGV[3]
local job = load(id)
local letters_at = 15 + 6 * tonumber(ARGV[14])
local letters = tonumber(ARGV[letters_at])
if not job or job.h[C] ~= ARGV[4] or not are_letters_as_seen(letters_at + 1, letters) then
  return { said(), 0, 0, job and job.s or '' }
end
local changes = tonumber(ARGV[14])
for at = 15, 14 + 6 * changes, 6 do
  local piece = job.pieces[ARGV[at]]
  if piece then
    unplace(job, piece)
    job.pieces[ARGV[at]] = nil
  end
end
job.h = tokens_of(ARGV[5])
job.h[C] = ARGV[4]
for at = 15, 14 + 6 * changes, 6 do
  if ARGV[at + 1] ~= '-' then
    local piece = {
      n = ARGV[at], ready_at = ARGV[at + 2], claims = tonumber(ARGV[at + 3]), fence = tonumber(ARGV[at + 4]), turn = '0', ref = '',
    }
    place(job, piece, ARGV[at + 1], ARGV[at + 5])
  end
end
if ARGV[6] ~= '' then
  job.b = ARGV[6]
end
if ARGV[7] == '' then
  redis.call('ZREM', BASE .. ':due', id)
elseif ARGV[7] ~= '=' then
  redis.call('ZADD', BASE .. ':due', ARGV[7], id)
end
if ARGV[9] == '1' then
  redis.call('HDEL', job.at, 'x')
end
if ARGV[10] ~= '' then
  redis.call('HSET', job.at, 'a', ARGV[10], 'y', ARGV[11])
end
local lines, left = redis.call('HGET', job.at, 'o') or '', {}
for _, n in ipairs(tokens_of(lines)) do
  if ARGV[8] ~= '' or n == ARGV[12] then
    redis.call('UNLINK', BASE .. ':l:' .. id .. ':' .. n)
  else
    left[#left + 1] = n
  end
end
if lines ~= '' then
  redis.call('HSET', job.at, 'o', table.concat(left, ' '))
end
local chunks = BASE .. ':k:' .. id
if ARGV[12] ~= '' then
  redis.call('HSET', chunks, ARGV[12], ARGV[13])
end
if ARGV[8] ~= '' then
  for _, chunk in ipairs(redis.call('HVALS', chunks)) do
    local output, _, errors = unpack(cjson.decode(chunk))
    discard(output)
    discard(errors)
  end
  redis.call('UNLINK', chunks)
  close(job)
  redis.call('ZADD', BASE .. ':ended', ARGV[8], id)
  local run = parent_of(job) ~= '' and load(parent_of(job))
  if run then
    wake(run)
  end
end
save(job)
write_letters(letters_at + 1, letters)
for at = letters_at + 1 + LETTER * letters, #ARGV, WIDTH do
  take(new_at(at))
end
return { said(), readied, 1, job.s }
