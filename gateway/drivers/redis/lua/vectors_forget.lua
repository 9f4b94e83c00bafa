-- Forget what is of a model, a tenant, or has an id ('': any), some at a time.
-- ARGV: model, tenant, id, cursor. Returns where to go on ('0': it is done), entries, bytes and how many there were.
local model, tenant, id, cursor, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], 0
check_rows()
local found = { '0', { id, redis.call('HGET', FACTS, id) } }
if id == '' then
  found = redis.call('HSCAN', FACTS, cursor, 'COUNT', AT_ONCE)
end
for which = 1, #found[2], 2 do
  local facts = found[2][which + 1]
  if found[2][which] ~= '' and facts and is_of(facts, model, tenant) then
    take_out_row(found[2][which])
    count = count + 1
  end
end
return { found[1], entries(), bytes_held(), count }
