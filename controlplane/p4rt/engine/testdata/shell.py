# Drives a device by p4runtime-sh: shell.py ADDRESS P4INFO JSON; ends with "all done".
import sys
import p4runtime_sh.shell as sh

address, p4info, program = sys.argv[1:]
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program))

def read(entity):
    found = []
    entity.read(found.append)
    return found

def expect(what, got, want):
    if got != want:
        sys.exit('%s: got %r, want %r' % (what, got, want))

route = sh.TableEntry('router_ingress.ipv4_lpm')(action='router_ingress.set_next_hop')
route.match['hdr.ipv4.dst'] = '10.0.0.0/8'
route.action['next_hop'] = '7'
route.insert()
route.action['next_hop'] = '8'
route.modify()
found = read(sh.TableEntry('router_ingress.ipv4_lpm'))
expect('entries', len(found), 1)
expect('next hop', found[0].action['next_hop'].value, b'\x08')
try:
    route.insert()
    sys.exit('inserted twice')
except Exception as e:
    if 'ALREADY_EXISTS' not in str(e):
        sys.exit('inserted twice: %s' % e)
route.delete()
expect('entries', len(read(sh.TableEntry('router_ingress.ipv4_lpm'))), 0)

group = sh.TableEntry('router_ingress.ipv4_multicast')(action='router_ingress.replicate')
group.match['hdr.ipv4.dst'] = '224.0.0.1'
group.match['standard_metadata.ingress_port'] = '1&&&0x1ff'
group.action['group'] = '7'
group.priority = 5
group.insert()
expect('priority', read(sh.TableEntry('router_ingress.ipv4_multicast'))[0].priority, 5)

counter = sh.CounterEntry('router_ingress.port_rx')
counter.index = 3
counter.packet_count = 9
counter.modify()
expect('count', read(counter)[0].packet_count, 9)
expect('counters', len(read(sh.CounterEntry('router_ingress.port_rx'))), 512)

meter = sh.MeterEntry('router_ingress.port_meter')
meter.index = 2
meter.cir, meter.cburst, meter.pir, meter.pburst = 1000, 2000, 3000, 4000
meter.modify()
expect('rate', read(meter)[0].pir, 3000)

member = sh.ActionProfileMember('router_ingress.ecmp_selector')(member_id=1, action='router_ingress.choose')
member.action['next_hop'] = '8'
member.insert()
selector = sh.ActionProfileGroup('router_ingress.ecmp_selector')(group_id=1)
selector.add(1, 2)
selector.insert()
expect('groups', len(read(selector)), 1)
via = sh.TableEntry('router_ingress.ecmp')(group_id=1)
via.match['hdr.ipv4.dst'] = '11.0.0.0/8'
via.insert()

multicast = sh.MulticastGroupEntry(7)
multicast.add(0, 1)
multicast.add(1, 1)
multicast.insert()
expect('replicas', len(read(multicast)[0].replicas), 2)
clone = sh.CloneSessionEntry(5)
clone.add(1, 1)
clone.insert()
expect('sessions', len(read(clone)), 1)
clone.delete()

out = sh.PacketOut(payload=b'\x02' * 60)
out.metadata['egress_port'] = '1'
out.metadata['padding'] = '0'
out.send()
print('all done')
sh.teardown()
