-- Forgets responses whose time is over. ARGV behind the usual: how many. Returns now, 0, and how many it were.
local over = redis.call('ZRANGEBYSCORE', BASE .. ':kept_over', '-inf', exact(now), 'LIMIT', 0, math.min(AT_ONCE, tonumber(ARGV[3])))
for _, name in ipairs(over) do
  unkeep(string.match(name, '^([^:]*):(.*)$'))
end
return { said(), 0, #over }
