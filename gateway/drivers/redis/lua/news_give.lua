-- Give a slot back, if it is still one's own. KEYS[1] the slot. ARGV: whose it was.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
