-- Pushes prepared bodies in turn; only transaction ids, which must be new each time, are put in as they go.
local headers = {["Content-Type"] = "application/json"}
if config.token ~= "" then
   headers["Authorization"] = "Bearer " .. config.token
end
local ID_WIDTH = 36
local requests, turn, serial = {}, 0, 0

local function item(partition)
   local id = config.tag ~= "" and ',"transactionId":"@"' or ""
   return string.format('{"queue":"%s","partition":"p%d"%s,"payload":%s}',
      config.queue, partition % config.partitions, id, config.payload)
end

local function body(number)
   local items = {}
   for i = 1, config.batch do
      items[i] = item(config.spread and (number * config.batch + i - 1) or number)
   end
   return '{"items":[' .. table.concat(items, ",") .. "]}"
end

-- A request as a list of pieces with a gap for an id between each two.
local function with_gaps(text)
   local filled = text:gsub("@", string.rep("0", ID_WIDTH))
   local head = wrk.format("POST", "/api/v1/push", headers, filled)
   local pieces, start = {}, 1
   head = head:sub(1, #head - #filled)
   for at in text:gmatch("()@") do
      pieces[#pieces + 1] = text:sub(start, at - 1)
      pieces[#pieces + 1] = ""
      start = at + 1
   end
   pieces[1] = head .. pieces[1]
   pieces[#pieces + 1] = text:sub(start)
   return pieces
end

function init(_)
   local count = config.spread and math.ceil(config.partitions / config.batch) or config.partitions
   for number = 0, count - 1 do
      local text = body(number)
      requests[number + 1] = config.tag ~= "" and with_gaps(text)
         or wrk.format("POST", "/api/v1/push", headers, text)
   end
end

function request()
   turn = turn % #requests + 1
   local prepared = requests[turn]
   if config.tag == "" then
      return prepared
   end
   for gap = 2, #prepared, 2 do
      serial = serial + 1
      prepared[gap] = string.format("%s%012x", config.tag, serial)
   end
   return table.concat(prepared)
end
