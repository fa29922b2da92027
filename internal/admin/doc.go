// Package admin implements the control socket of a running instance: the server in
// the instance's process, and the client that the command line uses.
//
// The protocol is JSON over a Unix socket; each request and each response is one
// line. A request names an operation and its arguments:
//
//	{"v":1,"op":"set","app":"steer","args":{"mode":"write"}}
//
// The response holds a result or an error:
//
//	{"v":1,"result":{"actions":[...],"text":"reconfigure steer: mode=write (was off)\n"}}
//	{"v":1,"error":"no app is named \"stear\" (did you mean \"steer\"?)"}
//
// A client may send any number of requests over a connection. "tap" and "punts" turn
// the connection into a stream: the server sends an empty result when copying has begun, and then
// one response per frame, until the client hangs up.
//
// "table" and "connections" may have several responses; all but the last have "more" set.
//
// Only the owner can open the socket (mode 0600) and the default directory of sockets. The file NAME.sock.lock beside
// the socket holds the process ID of the instance. The process locks this file before it changes anything on the
// machine, and unlocks it when all changes are undone. Only the owner can open the file, so nobody else can lock it.
// What a request does to the workers happens between two of their breaths; workers never wait for it.
package admin
