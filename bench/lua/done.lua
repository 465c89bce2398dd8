-- Prints what a run did, as one line of JSON that bench/wrk.py looks for. Counters live in the threads.
local threads = {}

function setup(thread)
   threads[#threads + 1] = thread
end

function done(summary, latency, _)
   local function total(name)
      local sum = 0
      for _, thread in ipairs(threads) do
         sum = sum + (thread:get(name) or 0)
      end
      return sum
   end
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.timeout + errors.status + total("refused")
   io.write(string.format(
      '\nBENCH {"requests":%d,"seconds":%.6f,"errors":%d,"consumed":%d,"empty":%d,"p50_ms":%.3f,"p99_ms":%.3f}\n',
      summary.requests, summary.duration / 1e6, failed, total("consumed"), total("empty"),
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
