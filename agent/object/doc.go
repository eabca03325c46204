// Package object reads Kubernetes objects as the API server writes them into etcd: JSON, protobuf, or encrypted.
//
// Protobuf does not say how its fields are called. Kubernetes' own Go types would: linked in, all of them take 13 MB of the
// program. Their protobuf tags, which is all that is needed, take some 200 KB as text; kinds.txt is generated from the
// types, and a test decodes every kind with both.
package object
