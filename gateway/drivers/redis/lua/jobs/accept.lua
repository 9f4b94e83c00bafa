-- Takes jobs, all or none. ARGV behind the usual: open jobs there may be in all, per tenant; when they were sent, 1 if whoever
-- sent them does so again because nobody answered; the new jobs. What was taken back before it arrived is not taken.
-- Returns now, how many became ready, and for each job its id, what has become of it, and its text; or, where there
-- are too many, now, 0, how many would be open in all, and of that tenant.
local in_all, per_tenant = tonumber(ARGV[3]), tonumber(ARGV[4])
local news, names, fresh, of_tenant = {}, {}, 0, {}
for at = 7, #ARGV, WIDTH do
  local new = new_at(at)
  if tonumber(redis.call('GET', back_at(new.id)) or '-1') >= tonumber(ARGV[5]) then
    return { said(), 0, {} } -- nobody waits for this answer any more
  end
  news[#news + 1] = new
  local own, is_again = { 'i' .. new.id }, false
  if new.dedupe ~= '' then
    own[#own + 1] = 'd' .. new.dedupe
  end
  if new.debounce ~= '' then
    own[#own + 1] = 'w' .. new.debounce
  end
  for _, name in ipairs(own) do
    is_again = is_again or names[name]
    names[name] = true
  end
  if not is_again and not known(new) and not scheduled(new) then
    if parent_of(new) == '' then
      fresh = fresh + 1
      of_tenant[new.h[TENANT]] = (of_tenant[new.h[TENANT]] or 0) + 1
    end
  end
end
local all = tonumber(redis.call('HGET', BASE .. ':open', '*') or '0') + fresh
for tenant, number in pairs(of_tenant) do
  local its = tonumber(redis.call('HGET', BASE .. ':open', tenant) or '0') + number
  if its > per_tenant or all > in_all then
    return { said(), 0, all, its }
  end
end
promote(20) -- what was due before goes before
local reply = {}
for _, new in ipairs(news) do
  reply[#reply + 1] = { take(new, ARGV[6] == '1') }
end
return { said(), readied, reply }
