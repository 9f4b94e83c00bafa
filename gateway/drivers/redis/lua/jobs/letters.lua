-- Dead letters, as arguments: LETTER of them each.
--   BASE:dead hash: letter by id, its group in front of the JSON; BASE:g:GROUP zset of open letters by when
--   BASE:groups hash: what is common to a group; BASE:sizes zset of groups by their open letters; BASE:dead_bytes hash: bytes by group, '*' in all
--   BASE:dead_at zset of all letters by when; BASE:dead_big zset of those that have bytes
local LETTER = 7

-- As it was ('': it was not there), as it is ('': it goes), the job whose payload goes with it ('': none).
local function letter_at(at)
  return {
    id = ARGV[at], group = ARGV[at + 1], about = ARGV[at + 2], when = ARGV[at + 3], was = ARGV[at + 4], is = ARGV[at + 5],
    stripped = ARGV[at + 6],
  }
end

local function letter_of(id)
  return redis.call('HGET', BASE .. ':dead', id)
end

-- Returns its group, its bytes, whether it is open, and the job that it holds.
local function facts_of(text)
  local group, json = string.match(text, '^(%S+) (.*)$')
  local letter = cjson.decode(json)
  local is_open = letter.state ~= 'replayed_ok'
  local holds = is_open and letter.is_replayable and letter.line == cjson.null
  return group, letter.bytes, is_open, holds and letter.job_id
end

local function drop_letter(id)
  local text = letter_of(id)
  if not text then
    return 0
  end
  local group, bytes, is_open, job_id = facts_of(text)
  redis.call('HDEL', BASE .. ':dead', id)
  redis.call('ZREM', BASE .. ':dead_at', id)
  redis.call('ZREM', BASE .. ':dead_big', id)
  redis.call('HINCRBY', BASE .. ':dead_bytes', '*', 0 - bytes)
  if is_open then
    redis.call('ZREM', BASE .. ':g:' .. group, id)
    redis.call('HINCRBY', BASE .. ':dead_bytes', group, 0 - bytes)
    if tonumber(redis.call('ZINCRBY', BASE .. ':sizes', -1, group)) < 1 then
      redis.call('ZREM', BASE .. ':sizes', group)
      redis.call('HDEL', BASE .. ':dead_bytes', group)
      redis.call('HDEL', BASE .. ':groups', group)
      redis.call('ZREM', BASE .. ':group_ids', group)
    end
  end
  local ended_at = job_id and redis.call('HGET', BASE .. ':held', job_id)
  if ended_at then
    redis.call('HDEL', BASE .. ':held', job_id)
    redis.call('ZADD', BASE .. ':ended', ended_at, job_id)
  end
  return 1
end

local function keep_letter(letter)
  drop_letter(letter.id)
  local group, bytes, is_open, job_id = facts_of(letter.is)
  redis.call('HSET', BASE .. ':dead', letter.id, letter.is)
  redis.call('ZADD', BASE .. ':dead_at', letter.when, letter.id)
  redis.call('HINCRBY', BASE .. ':dead_bytes', '*', bytes)
  if bytes > 0 then
    redis.call('ZADD', BASE .. ':dead_big', letter.when, letter.id)
  end
  if is_open then
    redis.call('ZADD', BASE .. ':g:' .. group, letter.when, letter.id)
    redis.call('ZINCRBY', BASE .. ':sizes', 1, group)
    redis.call('HINCRBY', BASE .. ':dead_bytes', group, bytes)
    redis.call('HSET', BASE .. ':groups', group, letter.about)
    redis.call('ZADD', BASE .. ':group_ids', 0, group)
  end
  local ended_at = job_id and redis.call('ZSCORE', BASE .. ':ended', job_id)
  if ended_at then
    redis.call('ZREM', BASE .. ':ended', job_id)
    redis.call('HSET', BASE .. ':held', job_id, ended_at)
  end
end

-- Tells whether letters are as they were seen; one that is new may be there.
local function are_letters_as_seen(from, number)
  for at = from, from + LETTER * (number - 1), LETTER do
    local letter = letter_at(at)
    if letter.was ~= '' and letter_of(letter.id) ~= letter.was then
      return false
    end
  end
  return true
end

-- Writes letters; one that is there stays as it is where a new one comes.
local function write_letters(from, number)
  for at = from, from + LETTER * (number - 1), LETTER do
    local letter = letter_at(at)
    if letter.was ~= '' or not letter_of(letter.id) then
      keep_letter(letter)
      if letter.stripped ~= '' then
        redis.call('HDEL', BASE .. ':j:' .. letter.stripped, 'x')
      end
    end
  end
end
