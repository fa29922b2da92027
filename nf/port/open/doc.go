// Package open opens the ports of a graph.Spec on this machine: interfaces over AF_XDP, alone or as the two ends of a
// wire, packet sockets and TAP interfaces.
//
// What an interface needs (offloads, XDP programs, rings) is set when its port is opened, and put back by Close, so that
// a program must call Close before it ends. Of a program that was killed, the next one that opens the same interfaces, or
// "quillon detach", puts the settings back. Frames of a wire cross in the kernel while no program is there.
//
// The order that loses no frame:
//
//	Prepare -> graph.New -> Instance.Begin -> Attach -> Instance.Run     the apps are ready when the first frame comes
//	Detach -> the end of Instance.Run -> Instance.Close -> Close         frames cross without the workers before these end
//
// Run does all of it. The two ends of a wire are two afxdp ports that name each other by their argument pair.
package open
