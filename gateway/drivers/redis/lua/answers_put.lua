-- Keep a value instead of what is there, if there is room for it within the bound; the least recently used go for it.
-- KEYS[5] its value, [6] the place of its parts, [7] those put aside. ARGV: now, id, seconds left, size, owner, bound, value ('': only what is there goes).
-- Returns whether it is done (else to be asked again), entries, bytes, and whose values are to be dropped.
local now, id, left, size, bound = now_s(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6])
local ids = {}
check()
take_out(id)
if ARGV[7] == '' then
  redis.call('UNLINK', KEYS[5], KEYS[6])
  return { 1, entries(), bytes_held(), ids }
end
if not make_room(bound - size, now, ids) then
  redis.call('UNLINK', KEYS[5], KEYS[6])
  return { 0, entries(), bytes_held(), ids }
end
if not keep_parts(ARGV[7], KEYS[6], KEYS[7], ms_of(left)) then
  redis.call('UNLINK', KEYS[5], KEYS[6])
  return { 1, entries(), bytes_held(), ids }
end
redis.call('SET', KEYS[5], ARGV[7], 'PX', ms_of(left))
redis.call('SREM', GONE, id)
put_in(id, now, now, left, size, ARGV[5])
return { 1, entries(), bytes_held(), ids }
