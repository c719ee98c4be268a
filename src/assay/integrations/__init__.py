"""Records and feeds training that other libraries drive: callbacks for transformers, Lightning and Accelerate."""
