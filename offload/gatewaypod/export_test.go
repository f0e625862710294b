package gatewaypod

// Forward is one connection to a port of a pod, for tests that compare with it.
var Forward = forward
