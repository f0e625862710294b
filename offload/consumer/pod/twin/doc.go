// Package twin is the target's side of the pods of one namespace: the twin namespace with this cluster's wrappers, their
// pods, and the Secrets with their tokens. A Twin watches them, and does what the controller of package pod decides. It
// reads the twin, and home's Services through its caller; it alone writes the wrappers, pods and tokens there, and the
// copies of their events at home. Restart: everything is listed again; how pods ended is lost. Failure: errors are those
// of the request; watches continue by themselves.
package twin
