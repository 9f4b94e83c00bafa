-- Keep what came of it, if it is held with this fence or nonce; those completed first go for it.
-- ARGV: now, id, asked ('': it is not known to hold it), nonce, fence, seconds left, size, bound, value ('': it cannot be kept).
-- Returns `kept`, `refused`, `again` when more has to go first, or `lost` when the value's parts are not there; entries,
-- bytes, how many of those that go were still of use, and whose values are to be dropped.
local now, id, asked, nonce, fence = now_s(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local left, size, bound = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local record, ids, lost = look(), {}, 0
local function reply(state)
  return { state, entries() + redis.call('ZCARD', RUNNING), bytes_held(), lost, ids }
end
check()
if is_held(record, fence, nonce) then
  asked = record.asked
elseif record.state == 'done' and nonce ~= '' and record.nonce == nonce then
  return reply('kept') -- before, and its holder never heard of it
elseif asked == '' or not is_free(record, now) or not has_lost(fence) then
  return reply('refused')
end
if ARGV[9] == '' then
  redis.call('UNLINK', RECORD)
  redis.call('ZREM', RUNNING, id)
  return reply('refused')
end
take_out(id)
local is_room
is_room, lost = make_room(bound - size, now, ids)
if not is_room then
  return reply('again')
end
if not keep_parts(ARGV[9], KEYS[8], KEYS[9], ms_of(left)) then
  return reply('lost')
end
redis.call('HSET', RECORD, 'state', 'done', 'asked', asked, 'nonce', nonce, 'fence', fence, 'ends', now + left, 'value', ARGV[9])
redis.call('PEXPIRE', RECORD, ms_of(left))
redis.call('ZREM', RUNNING, id)
redis.call('SREM', GONE, id)
put_in(id, now, now, left, size, string.rep('\0', 32))
return reply('kept')
