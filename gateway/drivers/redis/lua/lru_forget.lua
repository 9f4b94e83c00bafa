-- Forget what is of a model, a tenant, or has an id ('': any), some at a time.
-- ARGV: model, tenant, id, cursor. Returns where to go on ('0': it is done), entries, bytes, and whose values are to be dropped.
local model, tenant, id, cursor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ids = {}
check()
if id ~= '' then
  local facts = redis.call('HGET', FACTS, id)
  if facts and is_of(facts, model, tenant) then
    let_go(id, ids)
  end
  cursor = '0'
else
  local found = redis.call('HSCAN', FACTS, cursor, 'COUNT', AT_ONCE)
  cursor = found[1]
  for which = 1, #found[2], 2 do
    if found[2][which] ~= '' and is_of(found[2][which + 1], model, tenant) then
      let_go(found[2][which], ids)
    end
  end
end
return { cursor, entries(), bytes_held(), ids }
