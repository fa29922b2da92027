// Package admin is the control socket of a running instance: a server beside
// the instance, and the client that the command line uses.
//
// The protocol is JSON over a Unix socket, one request and one response a
// line. A request names an operation and its arguments:
//
//	{"v":1,"op":"set","app":"steer","args":{"mode":"write"}}
//
// The response holds a result or an error:
//
//	{"v":1,"result":{"actions":[...],"text":"reconfigure steer: mode=write (was off)\n"}}
//	{"v":1,"error":"no app is named \"stear\" (did you mean \"steer\"?)"}
//
// A connection may be used for any number of requests. "tap" and "punts" turn
// it into a stream: an empty result when copying has begun, then one response
// a frame, until the client hangs up.
//
// "table" has as many answers as its entries need; all but the last say "more".
//
// The socket belongs to its owner alone (mode 0600), and so does the directory that it is in by default. Beside it
// NAME.sock.lock has the number of the process whose place it is, which keeps it locked from before anything
// is changed until all is put back; as only its owner can open the file, nobody else can lock it. Whatever a request does
// to the workers happens between two of their breaths; they never wait.
package admin
