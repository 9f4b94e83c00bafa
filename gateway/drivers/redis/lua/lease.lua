-- One replica's ask about one limit that many share: fold in what it tells, let time pass, share out what is free.
--
-- KEYS[1]  the limit
-- ARGV     now ('': the server's), the replica, the kind, seventeen doubles (see `pack_ask` in fleet/redis.py), and the time
--          after which it is too late ('0': never): an ask that lay in the buffers of a server that stood still would
--          take the time it stood still for time in which nobody used anything, and nobody waits for its answer
-- returns  eight doubles: granted, level, wanting, retry_s, window, ends_in_s, most, now; nothing when it is too late
--
-- What a replica holds is always granted - used - given. Counts are told whole, never as differences, so an ask that comes
-- twice, late, or whose answer is lost, changes nothing. Invariant: level + held + set aside <= capacity, but for what
-- replicas tell that nobody granted them. Keep in step with tests/fleet/lease_model.py, which says the same at more length.

local SILENT_S = 5 -- who has not asked for so long is gone
local EARLY_S = 0.000001 -- a moment early counts as on time, as in core/limits/bucket.py
local ROUNDING = 0.000000000001
local STEPS = 64
local SOON_S, LATE_S, SLOTS_S, AHEAD_S = 0.005, 0.25, 0.1, 0.05
local LONG_S = 1 -- who is away for less may be so alone
local LEAST_TTL_S, MOST_TTL_S = 60, 2592000

-- a limit
-- STILL: until when nothing flows in; BACK: when the first came back after the store was away; APART: of what nobody held
-- then, what those who are not back yet may have taken with them
local KIND, LEVEL, AT, WINDOW, ENDS, CAPACITY, TURN, REPLICAS, STILL, BACK, APART = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
-- a replica of it; WANT and FIRST are what is unmet, ASIDE what waits for its next ask, SERVED its virtual time
local ID, GRANTED, USED, GIVEN, WANT, FIRST, KEEP, SERVED, ASIDE, SEEN, WHOLE, CHARGED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

local now, id, kind = now_s(ARGV[1]), ARGV[2], ARGV[3]
local asked_at = now
if tonumber(ARGV[5]) > 0 and now > tonumber(ARGV[5]) then
  return ''
end
local rate, capacity, window_s, granted, used, given, want, first, keep, ceiling, window, known, away_s, away_rate,
  lag_s, charged, charged_before = struct.unpack('<ddddddddddddddddd', ARGV[4])
local is_window, is_slots = kind == 'window', kind == 'slots'
local slack = rate * EARLY_S + capacity * ROUNDING
local min, max, floor, ceil = math.min, math.max, math.floor, math.ceil

local limit, replicas, me, is_new

local function lent(each)
  return each[GRANTED] - each[USED] - each[GIVEN]
end

local function lacks(each)
  return each[WANT] - each[ASIDE]
end

local function waits(each)
  return lacks(each) > slack
end

local function out()
  local sum = 0
  for _, each in ipairs(replicas) do
    sum = sum + (each[GRANTED] - each[USED] - each[GIVEN]) + each[ASIDE]
  end
  return sum
end

-- 1. The limit as it was left, or a new one.

local function new_limit()
  local level = known >= 0 and min(known, capacity) or capacity
  if is_window and known >= 0 then
    return {kind, level, now, max(1, window), now + window_s, capacity, 0, {}, 0, now, 0}
  end
  return {kind, level, now, window, 0, capacity, 0, {}, 0, known >= 0 and now or 0, 0}
end

local function load()
  local packed = redis.call('GET', KEYS[1])
  limit = packed and cmsgpack.unpack(packed)
  is_new = not limit or limit[KIND] ~= kind
  if is_new then
    limit = new_limit()
  end
  replicas = limit[REPLICAS]
end

-- A server whose clock is behind its predecessor's: better a short gift than a long silence.
local function set_clock()
  if limit[AT] > now + SILENT_S then
    limit[AT], limit[STILL], limit[BACK] = now, min(limit[STILL], now), min(limit[BACK], now)
    for _, each in ipairs(replicas) do
      each[SEEN] = min(each[SEEN], now)
    end
  end
  now = max(now, limit[AT])
end

-- 2. Time passes.

local function void()
  limit[LEVEL], limit[ENDS], limit[APART] = capacity, 0, 0
  for _, each in ipairs(replicas) do
    each[GRANTED], each[ASIDE] = each[USED] + each[GIVEN], 0
  end
end

local function pass_window()
  if limit[ENDS] > 0 then
    limit[ENDS] = min(limit[ENDS], now + window_s)
    limit[LEVEL] = limit[LEVEL] + capacity - limit[CAPACITY] -- what is used stays used
  end
  if limit[ENDS] == 0 or now + EARLY_S >= limit[ENDS] then
    void()
  end
  if window > limit[WINDOW] then -- a server that lost the last of what its predecessor wrote
    void()
    limit[WINDOW], limit[ENDS] = window, now + window_s
  end
end

-- Whether nobody has come since this replica was away: then each lived on its own part.
local function is_first_back()
  return away_s > 0 and (is_new or now - limit[AT] >= away_s / 2)
end

-- What each took with it is its own; of what others may have taken nothing is given away until they are back, or not coming.
local function part_out(borrowed)
  if is_first_back() and away_s >= LONG_S then
    limit[APART], limit[LEVEL] = limit[APART] + max(0, limit[LEVEL]), min(0, limit[LEVEL])
  end
  local from_apart = min(limit[APART], borrowed)
  limit[APART] = limit[APART] - from_apart
  limit[LEVEL] = limit[LEVEL] - (borrowed - from_apart)
  if limit[APART] > 0 and now - limit[BACK] > SILENT_S then
    limit[LEVEL], limit[APART] = limit[LEVEL] + limit[APART], 0
  end
end

local function refill()
  if is_first_back() then -- what flowed in was the refill of everybody's own part
    limit[BACK] = now
    return
  end
  local flows_s = max(0, now - max(limit[AT], limit[STILL]))
  limit[LEVEL] = min(limit[LEVEL] + rate * flows_s, capacity - out() - limit[APART])
  if now - limit[BACK] < away_s then -- others were back before it: what flowed to it since then has flowed here, too
    limit[LEVEL] = limit[LEVEL] - away_rate * (now - limit[BACK])
  end
end

local function forget_silent()
  if kind == 'bucket' and rate == 0 then -- a sum that only grows: who comes back must not be taken for another
    return
  end
  for place = #replicas, 1, -1 do
    local each = replicas[place]
    if now - each[SEEN] > SILENT_S then -- what it held is taken as used; slots are counted anew and so come back
      limit[LEVEL] = limit[LEVEL] + each[ASIDE]
      table.remove(replicas, place)
    end
  end
end

-- 3. What this replica tells.

local function find()
  for _, each in ipairs(replicas) do
    if each[ID] == id then
      return each
    end
  end
end

-- Whether its counts are of the time that is counted now: those of a window that is over say nothing of this one.
local function is_current()
  return not is_window or (limit[ENDS] > 0 and window == limit[WINDOW])
end

local function fold()
  me = find()
  if me and lag_s > 0 and used > me[USED] + slack and limit[LEVEL] + out() >= capacity - slack then
    limit[STILL] = now + lag_s
  end
  if not me then
    me = {id, is_current() and granted or used + given, used, given, 0, 0, 0, 0, 0, now, false, charged_before}
    replicas[#replicas + 1] = me
  elseif is_current() then
    local returned = given - me[GIVEN]
    local ungranted = max(0, granted - me[GRANTED]) -- a server that lost the last of what it wrote
    limit[LEVEL] = limit[LEVEL] + returned - ungranted
    me[SERVED] = me[SERVED] - returned
    me[GRANTED] = max(granted, me[GRANTED])
  else
    me[GRANTED] = lent(me) + used + given
  end
  me[USED], me[GIVEN], me[SEEN] = used, given, now
  if lent(me) < 0 then -- it has used more than it had
    limit[LEVEL] = limit[LEVEL] + lent(me)
    me[GRANTED] = used + given
  end
end

-- Among those who were served alike, who has waited for longest comes first.
local function go_last()
  for place, each in ipairs(replicas) do
    if each == me then
      table.insert(replicas, table.remove(replicas, place))
      return
    end
  end
end

-- What went while the store was away, in a window that began then, is part of this one.
local function charge()
  local due = max(0, charged - me[CHARGED])
  me[CHARGED] = max(charged, me[CHARGED])
  if is_window and limit[ENDS] == 0 and due > 0 then
    limit[WINDOW], limit[ENDS] = limit[WINDOW] + 1, now + window_s
  end
  part_out(due)
end

-- What was granted in answers that it has not heard it need not be given again.
local function note_want()
  local was_waiting = waits(me)
  local coming = lent(me) - (is_current() and max(0, granted - used - given) or 0)
  me[WHOLE] = want % 1 == 0 and first % 1 == 0
  me[WANT], me[FIRST], me[KEEP] = max(0, max(want, first) - coming), max(0, first - coming), keep
  if me[WHOLE] then
    me[WANT], me[FIRST] = ceil(me[WANT] - slack), ceil(me[FIRST] - slack)
  end
  local surplus = max(0, me[ASIDE] - me[WANT])
  me[ASIDE], me[SERVED] = me[ASIDE] - surplus, me[SERVED] - surplus
  limit[LEVEL] = limit[LEVEL] + surplus
  if waits(me) and not was_waiting then
    me[SERVED] = max(me[SERVED], limit[TURN])
    go_last()
  end
end

local function cap_level()
  if is_slots then
    limit[LEVEL] = capacity - out()
  else
    limit[LEVEL] = min(limit[LEVEL], min(capacity, ceiling) - out() - limit[APART])
  end
end

-- 4. What is free goes to those who want, whoever of them asks: whoever was served least comes next.

local function give(each, amount)
  each[ASIDE] = each[ASIDE] + amount
  each[SERVED] = each[SERVED] + amount
  limit[LEVEL] = limit[LEVEL] - amount
end

local function least_of(each)
  return max(0, each[FIRST] - each[ASIDE])
end

-- Those with a larger `keep` than one who has to wait for more must not overtake it; nor those with the same.
local function next_in_turn(barrier, hopeless)
  local chosen
  for _, each in ipairs(replicas) do
    if each[WANT] - each[ASIDE] > slack and each[KEEP] < barrier and not hopeless[each] then
      if not chosen or each[SERVED] < chosen[SERVED] then
        chosen = each
      end
    end
  end
  return chosen
end

-- How much `each` can have now: nothing rather than less than its first call takes. The second result: nor ever, by waiting.
local function amount_for(each, quantum)
  local level, least = limit[LEVEL] + slack, least_of(each)
  local is_large = least + each[KEEP] > capacity -- it never leaves so much: it goes when nothing more can come
  if least > 0 and level < (is_large and max(least, capacity - out()) or least + each[KEEP]) then
    return 0, is_large
  end
  local amount = min(lacks(each), max(least, min(max(least, quantum), level - each[KEEP])))
  return each[WHOLE] and floor(amount) or amount, false
end

local function take_turns(waiting)
  local quantum = max(limit[LEVEL] / (8 * waiting), capacity / 1024)
  local barrier, hopeless = math.huge, {}
  for _ = 1, STEPS do
    local each = next_in_turn(barrier, hopeless)
    if not each then
      return
    end
    local amount, is_hopeless = amount_for(each, each[WHOLE] and max(1, floor(quantum)) or quantum)
    if is_hopeless then
      hopeless[each] = true
    elseif amount <= slack then
      barrier = each[KEEP]
    else
      limit[TURN] = max(limit[TURN], each[SERVED])
      give(each, amount)
    end
  end
end

local function share_out()
  local waiting, total, most_kept = 0, 0, 0
  for _, each in ipairs(replicas) do
    if is_slots then
      each[SERVED] = lent(each) + each[ASIDE] -- fair is how many each holds, not how many it ever had
    end
    if waits(each) then
      waiting, total, most_kept = waiting + 1, total + lacks(each), max(most_kept, each[KEEP])
    end
  end
  if waiting > 0 and total + most_kept > limit[LEVEL] + slack then
    return take_turns(waiting)
  end
  limit[TURN] = 0 -- nobody waits: what was before no longer counts
  for _, each in ipairs(replicas) do
    give(each, max(0, lacks(each)))
    each[SERVED] = 0
  end
end

-- 5. The answer.

local function hand_over()
  if is_window and limit[ENDS] == 0 and out() > slack then
    limit[WINDOW], limit[ENDS] = limit[WINDOW] + 1, now + window_s
  end
  me[GRANTED] = me[GRANTED] + me[ASIDE]
  me[WANT], me[FIRST] = lacks(me), least_of(me)
  me[ASIDE] = 0
end

local function count_waiting()
  local waiting = 0
  for _, each in ipairs(replicas) do
    if waits(each) then
      waiting = waiting + 1
    end
  end
  return waiting
end

-- When it will be its turn, if the others go on as they do.
local function refilled_in_s()
  local need = me[FIRST] > 0 and me[FIRST] or min(me[WANT], max(1, rate * AHEAD_S))
  for _, each in ipairs(replicas) do
    if waits(each) and each[SERVED] < me[SERVED] and each[KEEP] <= me[KEEP] then
      need = need + min(lacks(each), max(least_of(each), me[SERVED] - each[SERVED]))
    end
  end
  return rate > 0 and (need + me[KEEP] - limit[LEVEL]) / rate or LATE_S
end

local function retry_s()
  if not waits(me) then
    return 0
  elseif is_slots then
    return SLOTS_S
  end
  local wait_s = is_window and limit[ENDS] - now or refilled_in_s()
  return min(LATE_S, max(me[FIRST] > 0 and SOON_S or AHEAD_S, wait_s))
end

-- The max-min fair share of each, in whole slots.
local function fair_slots()
  local wishes, left = {}, capacity
  for place, each in ipairs(replicas) do
    wishes[place] = lent(each) + max(each[ASIDE], each[WANT])
  end
  table.sort(wishes)
  for place, wish in ipairs(wishes) do
    local part = left / (#wishes - place + 1)
    if wish > part + slack then
      return floor(part + slack)
    end
    left = left - wish
  end
  return math.huge
end

-- Slots are never used up, so whoever has them could keep them for ever: not while others wait who have less than is fair.
local function most_slots()
  local fair = fair_slots()
  for _, each in ipairs(replicas) do
    if waits(each) and lent(each) + each[ASIDE] < max(1, fair) and fair < math.huge then
      return fair
    end
  end
  return math.huge
end

-- Nothing, when somebody's call is so large that it cannot go as long as others hold what they do.
local function most_held()
  for _, each in ipairs(replicas) do
    if waits(each) and least_of(each) > capacity - out() + 10 * slack and least_of(each) <= capacity then
      return 0
    end
  end
  return math.huge
end

local function save()
  limit[AT], limit[CAPACITY] = now, capacity
  local full_s = is_window and window_s or (kind == 'bucket' and (rate > 0 and capacity / rate or MOST_TTL_S)) or 0
  local ttl_s = min(MOST_TTL_S, 10 + max(LEAST_TTL_S, 2 * full_s))
  redis.call('SET', KEYS[1], cmsgpack.pack(limit), 'PX', string.format('%d', ttl_s * 1000))
end

load()
set_clock()
if is_window then
  pass_window()
  if is_first_back() then
    limit[BACK] = now
  end
elseif not is_slots then
  refill()
end
forget_silent()
fold()
if not is_slots then
  charge()
end
note_want()
cap_level()
share_out()
hand_over()
save()
return struct.pack('<dddddddd', me[GRANTED], limit[LEVEL], count_waiting(), retry_s(), limit[WINDOW],
  max(0, limit[ENDS] - now), is_slots and most_slots() or most_held(), asked_at)
