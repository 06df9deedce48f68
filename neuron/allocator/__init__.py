"""A model of the scheduler's allocator (k8s.io/dynamic-resource-allocation): which devices would a claim get?"""
