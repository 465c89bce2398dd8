-- Pops, and acknowledges what the replies hold.
-- wrk runs these functions per thread and does not say which connection a reply came by. It need not: an ack is not
-- bound to a connection, so replies put acks in one line, and whoever may send next takes the first, else pops.
local KEY = '"transactionId":"'
local headers = {["Content-Type"] = "application/json"}
local find, sub, byte = string.find, string.sub, string.byte
local acks, first, last = {}, 1, 0
local pop
consumed, empty, refused = 0, 0, 0 -- global: done() reads them

function init(_)
   pop = wrk.format("GET", string.format("/api/v1/pop/queue/%s?batch=%d%s",
      config.queue, config.batch, (config.auto_ack and "&autoAck=true" or "")
         .. (config.shared and "&groupMode=shared" or "")))
end

function request()
   if first > last then
      return pop
   end
   local ack = acks[first]
   acks[first] = nil
   first = first + 1
   return ack
end

-- One partition per pop, so the ids of partition and lease at the top are those of every message.
local function ack_of(body, ids)
   local partition = body:match('"partitionId":"([^"]*)"')
   local lease = body:match('"leaseId":"([^"]*)"')
   local tail = '","partitionId":"' .. partition .. '","leaseId":"' .. lease .. '","status":"completed"}'
   local head = '{"transactionId":"'
   if config.batch == 1 then
      return wrk.format("POST", "/api/v1/ack", headers, head .. ids[1] .. tail)
   end
   local items = table.concat(ids, tail .. "," .. head)
   return wrk.format("POST", "/api/v1/ack/batch", headers, '{"acknowledgments":[' .. head .. items .. tail .. "]}")
end

local function transaction_ids(body)
   local ids, count = {}, 0
   local _, stop = find(body, KEY, 1, true)
   while stop do
      local quote = find(body, '"', stop + 1, true)
      count = count + 1
      ids[count] = sub(body, stop + 1, quote - 1)
      -- The payload follows within a few fields: stepping over most of it is what makes this cheap.
      _, stop = find(body, KEY, quote + config.stride, true)
   end
   return ids, count
end

function response(status, _, body)
   if status == 204 then
      empty = empty + 1
   elseif status >= 400 then
      return -- wrk counts it
   elseif byte(body) == 91 then -- "[": the answer to an ack
      if find(body, '"success":false', 1, true) then
         refused = refused + 1
      else
         consumed = consumed + tonumber(body:match('.*"index":(%d+)')) + 1
      end
   else
      local ids, count = transaction_ids(body)
      if count == 0 then
         empty = empty + 1
      elseif config.auto_ack then
         consumed = consumed + count
      else
         last = last + 1
         acks[last] = ack_of(body, ids)
      end
   end
end
