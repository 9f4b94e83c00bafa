-- Forgets workers that have nothing. ARGV behind the usual: milliseconds without a word. Returns now, and how many it were.
local gone = 0
for _, name in ipairs(redis.call('HKEYS', BASE .. ':depth')) do
  for _, way in ipairs({ 'f', 'n' }) do
    local stream = stream_of(string.match(name, '^(.*):.$'), way)
    if redis.call('EXISTS', stream) == 1 then
      for _, worker in ipairs(redis.call('XINFO', 'CONSUMERS', stream, 'workers')) do
        if worker[4] == 0 and worker[6] > tonumber(ARGV[3]) then
          redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', worker[2])
          gone = gone + 1
        end
      end
    end
  end
end
return { said(), 0, gone }
