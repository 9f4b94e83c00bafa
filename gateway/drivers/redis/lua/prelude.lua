-- In front of every script: what all of them need.

-- Seconds with microseconds: `given` as it is, or the server's own time where that is ''. Replicas' clocks are not asked.
local function now_s(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

