-- Dissectors for Wireshark: Clio's frames with their go-back-N header, and Clover's words in RDMA operations.
-- Wireshark reads this file from its folder for personal Lua plugins (Help, About, Folders), tshark also with -X lua_script:quillon.lua.
-- Offsets are those of quillon's packages nf/hdr/clio and nf/hdr/clover, bytes unless they say bits.

-- Clio: UDP port 1234; little-endian. Nothing in a frame says whether a go-back-N header is there: the preference does.
local clio = Proto("clio", "Clio")
clio.prefs.port = Pref.uint("UDP port", 1234, "Port of Clio's devices")
clio.prefs.gbn = Pref.bool("Frames have a go-back-N header", false, "Clio's transport is in use")

local gbn_types = {[1] = "ack", [2] = "nack", [3] = "data"}
local opcodes = {[0x60] = "read", [0x62] = "create", [0x64] = "update", [0x66] = "delete", [0x88] = "open", [0x8A] = "close"}
local names = {}
for request, name in pairs(opcodes) do
  names[request] = name
  names[request + 1] = name .. "-answer"
end
local statuses = {[0] = "ok", [1] = "invalid", [2] = "no right to write", [3] = "no right to read", [4] = "busy", [5] = "unknown"}

local c = {
  gbn_type = ProtoField.uint8("clio.gbn.type", "Type", base.DEC, gbn_types),
  gbn_seq = ProtoField.uint32("clio.gbn.seq", "Sequence number"),
  gbn_src = ProtoField.uint32("clio.gbn.src", "Session of the sender", base.DEC),
  gbn_dst = ProtoField.uint32("clio.gbn.dst", "Session of the receiver", base.DEC),
  pid = ProtoField.uint16("clio.pid", "Process"),
  id = ProtoField.uint16("clio.id", "Request number"),
  opcode = ProtoField.uint8("clio.opcode", "Opcode", base.HEX, names),
  status = ProtoField.uint8("clio.status", "Status", base.DEC, statuses),
  replicate = ProtoField.bool("clio.replicate", "Copies are asked for"),
  size = ProtoField.uint16("clio.size", "Size, of this header and what follows"),
  key_size = ProtoField.uint8("clio.key_size", "Size of the key"),
  value_size = ProtoField.uint16("clio.value_size", "Size of the value"),
  key = ProtoField.uint64("clio.key", "Key", base.HEX),
  value = ProtoField.bytes("clio.value", "Value"),
  session = ProtoField.uint32("clio.session", "Session"),
  malformed = ProtoField.string("clio.malformed", "Malformed"),
}
clio.fields = {}
for _, f in pairs(c) do table.insert(clio.fields, f) end

local function malformed(tree, info, why)
  tree:add(c.malformed, why):set_generated()
  info.cols.info = "Clio, malformed: " .. why
end

-- Where a request on a key, or an answer, is wrong; nil: nowhere.
local function operation(rest, opcode, status, tree)
  if opcode >= 0x88 and opcode <= 0x8B then
    if rest:len() < 4 then return "no session" end
    tree:add_le(c.session, rest(0, 4))
    return nil
  end
  if opcode < 0x60 or opcode > 0x67 then return nil end
  if opcode % 2 == 1 then
    if rest:len() < 4 then return "no room for an answer" end
    local n = rest(2, 2):le_uint()
    tree:add_le(c.value_size, rest(2, 2))
    if opcode == 0x61 and status == 0 and rest:len() ~= 4 + n then return "another size than the value's" end
    if rest:len() > 4 then tree:add(c.value, rest(4)) end
    return nil
  end
  if rest:len() < 12 then return "no room for a request" end
  local keys, n = rest(1, 1):uint(), rest(2, 2):le_uint()
  tree:add(c.key_size, rest(1, 1))
  tree:add_le(c.value_size, rest(2, 2))
  if keys == 0 or keys > 8 then return "a key of " .. keys .. " bytes" end
  local key = rest(4, 8):le_uint64()
  if keys < 8 then key = key:band(UInt64(1, 0):lshift(8 * keys) - 1) end
  tree:add(c.key, rest(4, keys), key)
  if (opcode == 0x62 or opcode == 0x64) and rest:len() ~= 12 + n then return "another size than the value's" end
  if rest:len() > 12 then tree:add(c.value, rest(12)) end
  return nil
end

function clio.dissector(frame, info, root)
  if info.fragmented then return 0 end -- nothing of it can be told
  info.cols.protocol = "Clio"
  local tree = root:add(clio, frame())
  local at = 0
  if clio.prefs.gbn then
    if frame:len() < 8 then return malformed(tree, info, "no room for a go-back-N header") end
    local typ, session = frame(0, 1):uint(), frame(5, 3):le_uint()
    local sub = tree:add(frame(0, 8), "Go-back-N: " .. (gbn_types[typ] or "type " .. typ) .. ", " .. frame(1, 4):le_uint())
    sub:add(c.gbn_type, frame(0, 1))
    sub:add_le(c.gbn_seq, frame(1, 4))
    sub:add(c.gbn_src, frame(5, 3), session % 1024)
    sub:add(c.gbn_dst, frame(5, 3), math.floor(session / 1024) % 1024)
    if typ == 1 or typ == 2 then
      info.cols.info = "Clio " .. gbn_types[typ] .. " " .. frame(1, 4):le_uint()
      return
    end
    if typ ~= 3 then return malformed(tree, info, "go-back-N type " .. typ) end
    at = 8
  end
  if frame:len() < at + 16 then return malformed(tree, info, "no room for a lego header") end
  local head = frame(at, 16)
  local opcode, flags = head(3, 1):uint(), head(4, 1):uint()
  local id = head(2, 1):uint() * 256 + head(5, 1):uint()
  tree:add_le(c.pid, head(0, 2))
  tree:add(c.id, head(2, 4), id)
  tree:add(c.opcode, head(3, 1))
  tree:add(c.status, head(4, 1), flags % 16)
  tree:add(c.replicate, head(4, 1), math.floor(flags / 32) % 2 == 1)
  tree:add_le(c.size, head(6, 2))
  info.cols.info = "Clio " .. (names[opcode] or string.format("opcode 0x%02x", opcode)) .. " " .. id
  if head(6, 2):le_uint() ~= frame:len() - at then return malformed(tree, info, "another size than the datagram's") end
  local rest = frame(at + 16):tvb()
  if frame:len() == at + 16 then rest = ByteArray.new():tvb("nothing") end
  local why = operation(rest, opcode, flags % 16, tree)
  if why then return malformed(tree, info, why) end
end

local registered
local function register()
  local ports = DissectorTable.get("udp.port")
  if registered then ports:remove(registered, clio) end
  registered = clio.prefs.port
  ports:add(registered, clio)
end
clio.prefs_changed = register
register()

-- Clover: a pointer word has the entry in bits 59 to 28, the next version in 26 to 19, the entry version in 18 to 11. Words are the operands of
-- compare-and-swaps, and the first of entries; an entry goes on with its key. Other programs use the same operations: this shows only where the preference
-- says that they are Clover's.
local clover = Proto("clover", "Clover")
clover.prefs.show = Pref.bool("RDMA operations are Clover's", false, "Show what the words of compare-and-swaps, and WRITEs and READs of 128 bytes to 32 KiB, are in Clover")

local w = {
  role = ProtoField.string("clover.role", "Word"),
  lh = ProtoField.uint32("clover.lh", "Entry", base.HEX),
  version = ProtoField.uint8("clover.version", "Version"),
  next_version = ProtoField.uint8("clover.next_version", "Next version"),
  key = ProtoField.uint64("clover.key", "Key", base.HEX),
}
clover.fields = {w.role, w.lh, w.version, w.next_version, w.key}

local opcode_field = Field.new("infiniband.bth.opcode")
local compare_field, swap_field = Field.new("infiniband.atomiceth.cmpdt"), Field.new("infiniband.atomiceth.swapdt")
local original_field = Field.new("infiniband.atomicacketh.origremdt")
local length_field, payload_field = Field.new("infiniband.reth.dmalen"), Field.new("data.data")

local function word(tree, role, value)
  local function bits(from, n) return value:rshift(from):band(UInt64(2 ^ n - 1, 0)):tonumber() end
  local lh = value:rshift(28):lower()
  local version, after = bits(11, 8), bits(19, 8)
  local sub = tree:add(clover, string.format("%s: 0x%x.%d>%d", role, lh, version, after))
  sub:add(w.role, role)
  sub:add(w.lh, lh)
  sub:add(w.version, version)
  sub:add(w.next_version, after)
  return sub
end

local function is_slab(n)
  for class = 0, 8 do
    if n == 128 * 2 ^ class then return true end
  end
  return false
end

function clover.dissector(_, _, root)
  local opcode = clover.prefs.show and opcode_field()
  if not opcode then return end
  local code = opcode.value % 32
  if opcode.value > 31 then return end -- of reliable connections alone
  if code == 19 and compare_field() then
    word(root, "compare", compare_field().value)
    word(root, "swap", swap_field().value)
  elseif code == 18 and original_field() then
    word(root, "original", original_field().value)
  else
    local length, payload = length_field(), payload_field()
    local n = (code == 6 or code == 10) and length and length.value or code == 16 and payload and payload.len
    if n and is_slab(n) and payload and payload.len >= 16 then
      local bytes = payload.range
      word(root, "entry", bytes(0, 8):le_uint64()):add_le(w.key, bytes(8, 8))
    end
  end
end
register_postdissector(clover)
